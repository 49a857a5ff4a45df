"""Pass file descriptors over a unix socket, with its bytes (SCM_RIGHTS, ``man 7 unix``)."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

from opdispatch_wire.errors import WireError

MAX_UNCLAIMED = 8
"""Most descriptors received ahead of their frames; a peer that sends more breaks the protocol."""

_ITEM = array.array("i").itemsize
ROOM = socket.CMSG_LEN(_ITEM)
"""Size of the ancillary data of one descriptor, after whose bytes a read ends."""
# Plain ints: combining the socket module's enum flags takes longer than receiving.
WAITING = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
"""Flags of a read that blocks ..."""
NOT_WAITING = WAITING | int(socket.MSG_DONTWAIT)
"""... and of one that does not."""
TRUNCATED = int(socket.MSG_CTRUNC)
"""Flag of a read that had too little room for its ancillary data."""

Ancillary = list[tuple[int, int, "array.array[int]"]]


class PassedDescriptor:
    """A duplicate of a descriptor, closed when it has been sent or dropped with its frame."""

    __slots__ = ("number",)

    def __init__(self, descriptor: int) -> None:
        """Duplicate ``descriptor``. Raises OSError if the process may not have more."""
        self.number = -1
        self.number = os.dup(descriptor)

    @property
    def ancillary(self) -> Ancillary:
        """Ancillary data for ``sendmsg``."""
        return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.number]))]

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class ReceivedDescriptors:
    """Descriptors received with the bytes of one socket, in order. Only for its reader."""

    def __init__(self) -> None:
        self._unclaimed: deque[int | None] = deque()  # None: this process could not accept it

    def receive(self, connection: socket.socket, space: memoryview, *, waits: bool = True) -> int:
        """Receive like ``recv_into``. Raises OSError, and WireError for unexpected descriptors."""
        flags = WAITING if waits else NOT_WAITING
        count, ancillary, said, _ = connection.recvmsg_into((space,), ROOM, flags)
        if ancillary or said & TRUNCATED:
            self.add(ancillary, said)
        return count

    def add(self, ancillary: Sequence[tuple[int, int, bytes]], said: int) -> None:
        """Add the descriptors that ``recvmsg_into`` returned. Raises WireError if unexpected."""
        came = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came.frombytes(data[: len(data) // _ITEM * _ITEM])
        self._unclaimed.extend(came)
        if said & TRUNCATED:
            if came:
                raise WireError("received several descriptors at once; expected one per region")
            self._unclaimed.append(None)
        if len(self._unclaimed) > MAX_UNCLAIMED:
            raise WireError(
                f"received more than {MAX_UNCLAIMED} descriptors without their REGION frames"
            )

    def take(self) -> int:
        """Return the next descriptor, which the caller has to close.

        Raises WireError if none was received, and OSError if this process could not accept it.
        """
        if not self._unclaimed:
            raise WireError("received a REGION frame without a descriptor")
        descriptor = self._unclaimed.popleft()
        if descriptor is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return descriptor

    def close(self) -> None:
        """Close the descriptors that were not taken."""
        while self._unclaimed:
            descriptor = self._unclaimed.popleft()
            if descriptor is not None:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
