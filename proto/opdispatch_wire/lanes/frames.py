"""Frames of the local lane <-> bytes; see ``lane.proto``.

A peer is not trusted: an unknown kind, a malformed header and a length over the limit raise
WireError before anything is allocated for the payload.
"""

from __future__ import annotations

import mmap
import socket
import struct
from collections.abc import Callable

import numpy as np

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.descriptors import ROOM, TRUNCATED, WAITING, ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import PADDING, FrameKind
from opdispatch_wire.tensor_bytes import ALIGNMENT

READ_AT_ONCE = 256 * 1024
"""Bytes requested from a socket in one read."""

MAX_CONTROL_BYTES = 64 * 1024
"""Longest payload in bytes of a frame without arguments or results."""

_HEADER = struct.Struct("<I4s")
_KINDS = {bytes((kind,)) + PADDING: kind for kind in FrameKind}
_LARGE = {FrameKind.CALL, FrameKind.REPLY}

Frame = tuple[FrameKind, bytes | memoryview]


def _aligned_bytes(size: int) -> memoryview:
    """Allocate aligned memory, in which received tensors are used in place. Raises WireError."""
    # Not a bytearray, which would be filled with zeros while the GIL is held.
    try:
        room = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        raise WireError(f"cannot allocate memory for a frame of {size} bytes") from None
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].data


class FrameReader:
    """Parses the bytes of a socket into frames. Only for the reader of the socket.

    The socket writes into ``space()``, ``received(n)`` counts what it wrote, and ``next_frame``
    returns the frames one by one; ``receive`` does all three. A payload of more than READ_AT_ONCE
    bytes is received in its final place, if ``may_receive`` allows it; if it refuses, the next
    ``next_frame`` asks again.
    """

    def __init__(self, limit: int, may_receive: Callable[[int], bool] = lambda size: True) -> None:
        self.limit = limit
        """Longest accepted payload in bytes."""
        self._may_receive = may_receive
        # Pages of an anonymous mapping take memory when they are first written to: an idle lane has
        # one or two of them.
        self._buffer = memoryview(
            mmap.mmap(-1, READ_AT_ONCE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        )
        self._all = (self._buffer,)
        self._start = self._end = 0
        # A payload too long for the buffer: its kind and contents; ``_have`` bytes are received.
        self._long: tuple[FrameKind, memoryview] | None = None
        self._have = 0
        self.is_ahead = False
        """Whether bytes have been received that ``next_frame`` has not returned."""

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame is incomplete, so that the peer may close the connection."""
        return self._long is None and self._start == self._end

    @property
    def received_of_long(self) -> int:
        """Received bytes of the long payload in progress; 0 without one."""
        return self._have if self._long is not None else 0

    def space(self) -> memoryview:
        """Return the space for the next bytes of the socket.

        It is never empty after ``next_frame`` returned None.
        """
        if self._long is not None:
            return self._long[1][self._have :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            # The longest payload that fits in the buffer fits only at its start.
            rest = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, len(rest)
            self._buffer[: len(rest)] = rest
        return self._buffer[self._end :]

    def receive(
        self,
        connection: socket.socket,
        descriptors: ReceivedDescriptors | None = None,
        flags: int = WAITING,
    ) -> Frame | None:
        """Receive the bytes that the socket has; return the next frame, or None if incomplete.

        Raises OSError, which is BlockingIOError if there are none and it must not wait, EOFError at
        the end of the socket, and WireError.
        """
        if self.is_ahead:
            spaces = (self.space(),)
        else:
            self._start = self._end = 0
            spaces = self._all
        if descriptors is None:
            count = connection.recv_into(spaces[0], 0, flags)
        else:
            count, ancillary, said, _ = connection.recvmsg_into(spaces, ROOM, flags)
            if ancillary or said & TRUNCATED:
                descriptors.add(ancillary, said)
        if not count:
            raise EOFError
        if self._long is None:
            self._end += count
        else:
            self._have += count
        self.is_ahead = True
        return self.next_frame()

    def received(self, count: int) -> None:
        """Note that ``count`` bytes were written into ``space()``."""
        self.is_ahead = True
        if self._long is not None:
            self._have += count
        else:
            self._end += count

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None if it is incomplete. Raises WireError."""
        start, end = self._start, self._end
        if self._long is not None:
            kind, payload = self._long
            if self._have < len(payload):
                return None
            self._long = None
            self.is_ahead = start < end
            return kind, payload
        begin, buffer = start + _HEADER.size, self._buffer
        if end < begin:
            return None
        size, kind_and_padding = _HEADER.unpack_from(buffer, start)
        known = _KINDS.get(kind_and_padding)
        if known is None or size > MAX_CONTROL_BYTES or size > self.limit:
            known = self._checked(size, known, kind_and_padding)
        following = begin + size
        if following <= end:
            self._start = following
            self.is_ahead = following < end
            return known, bytes(buffer[begin:following])
        if _HEADER.size + size > READ_AT_ONCE and self._may_receive(size):
            contents = _aligned_bytes(size)
            self._have = end - begin
            contents[: self._have] = buffer[begin:end]
            self._start = self._end = 0
            self._long = (known, contents)
        return None

    def close(self) -> None:
        """Refuse further payloads, and drop the reference to ``may_receive``."""
        self._may_receive = _receive_nothing

    def _checked(self, size: int, kind: FrameKind | None, kind_and_padding: bytes) -> FrameKind:
        if kind is None:
            number, padding = kind_and_padding[0], kind_and_padding[1:]
            raise WireError(
                f"the header of a frame has kind {number} and padding {padding!r}; expected a "
                "known kind and zeros"
            )
        limit = self.limit if kind in _LARGE else min(self.limit, MAX_CONTROL_BYTES)
        if size > limit:
            raise WireError(
                f"a {kind.name} frame has {size} bytes; the limit is {limit} bytes",
                size=str(size),
                limit=str(limit),
            )
        return kind


def _receive_nothing(size: int) -> bool:
    return False
