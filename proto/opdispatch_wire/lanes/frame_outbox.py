"""Frames that wait to be written, several in one system call."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass

from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.lanes.descriptors import PassedDescriptor
from opdispatch_wire.lanes.frame_kind import HEADER, PADDING, FrameKind

COPIED_AT_MOST = 64 * 1024
"""Payloads up to this size in bytes are joined; a larger one is written without a copy."""
# Buffers per sendmsg; the system accepts at most 1,024 (IOV_MAX).
_PIECES_AT_ONCE = 512
_NOT_WAITING = int(socket.MSG_DONTWAIT)

FramePayload = bytes | MessagePieces
"""Payload of a frame, after its header."""


@dataclass(slots=True)
class FrameBatch:
    """Bytes to write together, and the descriptor to send with the first of them."""

    buffers: list[bytes | bytearray | memoryview]
    descriptor: PassedDescriptor | None = None

    def write_now(self, connection: socket.socket) -> FrameBatch | None:
        """Write without blocking; return the rest, None if everything was written.

        Raises OSError.
        """
        rest: FrameBatch | None = self
        try:
            while rest is not None:
                beside = rest.descriptor.ancillary if rest.descriptor is not None else ()
                sent = connection.sendmsg(rest.buffers[:_PIECES_AT_ONCE], beside, _NOT_WAITING)
                if len(rest.buffers) == 1 and sent == len(rest.buffers[0]):
                    return None
                rest = rest.after(sent)
        except BlockingIOError:
            pass
        return rest

    def detached(self) -> FrameBatch:
        """Return a copy of the batch that does not refer to others' memory."""
        copies: list[bytes | bytearray | memoryview] = [
            bytes(buffer) if isinstance(buffer, memoryview) else buffer for buffer in self.buffers
        ]
        return FrameBatch(copies, self.descriptor)

    def after(self, sent: int) -> FrameBatch | None:
        """Return the rest of the batch after ``sent`` bytes; None if nothing is left."""
        left: list[bytes | bytearray | memoryview] = []
        for buffer in self.buffers:
            if sent < len(buffer):
                left.append(memoryview(buffer)[sent:] if sent else buffer)
            sent = max(sent - len(buffer), 0)
        return FrameBatch(left) if left else None


class FrameOutbox:
    """A queue of frames. Any thread may add frames; only one at a time may take them out."""

    def __init__(self) -> None:
        self._frames: deque[tuple[FrameKind, FramePayload, PassedDescriptor | None]] = deque()
        self.frames: Sized = self._frames
        """The queued frames."""

    @property
    def waiting_bytes(self) -> int:
        """Size in bytes of the payloads of all queued frames."""
        return sum(len(payload) for _, payload, _ in list(self._frames))

    def put(
        self, kind: FrameKind, payload: FramePayload, descriptor: PassedDescriptor | None = None
    ) -> None:
        """Add a frame, with its descriptor if any."""
        self._frames.append((kind, payload, descriptor))

    def clear(self) -> None:
        """Drop all queued frames, as they cannot be written any more."""
        self._frames.clear()

    def detach(self) -> None:
        """Copy payloads that refer to others' memory. No frame may be taken out meanwhile."""
        frames = self._frames
        for place in range(len(frames)):  # other threads may append meanwhile
            kind, payload, descriptor = frames[place]
            if isinstance(payload, MessagePieces):
                frames[place] = kind, b"".join(payload.parts), descriptor

    def take_small(self) -> bytearray:
        """Take small frames out, as bytes; stop at the first that is large or has a descriptor."""
        together = bytearray()
        while self._frames:
            kind, payload, descriptor = self._frames[0]
            if descriptor is not None or isinstance(payload, MessagePieces):
                break
            if len(together) + len(payload) > COPIED_AT_MOST:
                break
            self._frames.popleft()
            together += HEADER.pack(len(payload), kind, PADDING)
            together += payload
        return together

    def next_batch(self) -> FrameBatch:
        """Take out the next frames to write together. There must be at least one."""
        together = bytearray()
        while self._frames and len(together) < COPIED_AT_MOST:
            # A descriptor is sent with the first byte of a batch, so its frame has to begin one.
            if self._frames[0][2] is not None and together:
                break
            kind, payload, descriptor = self._frames.popleft()
            together += HEADER.pack(len(payload), kind, PADDING)
            if isinstance(payload, MessagePieces):
                return FrameBatch([together, *payload.parts], descriptor)
            if len(payload) > COPIED_AT_MOST:
                return FrameBatch([together, payload], descriptor)
            together += payload
            if descriptor is not None:
                return FrameBatch([together], descriptor)
        return FrameBatch([together])
