"""Descriptors that travel over a unix socket, with its bytes (SCM_RIGHTS, ``man 7 unix``)."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence

from opdispatch_wire.errors import WireError

MAX_UNCLAIMED = 8
"""How many may have come whose frames have not; a peer that sends more is not believed."""

_ITEM = array.array("i").itemsize
ROOM = socket.CMSG_LEN(_ITEM)
"""For the ancillary data of one: a read ends after the bytes that a descriptor came with."""

# Plain ints: to combine flags of the socket module takes longer than to receive.
WAITING = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
"""Flags of a read that waits ..."""
NOT_WAITING = WAITING | int(socket.MSG_DONTWAIT)
"""... and of one that does not."""
TRUNCATED = int(socket.MSG_CTRUNC)
"""Said of a read with whose bytes more descriptors came than there was room for."""

Ancillary = list[tuple[int, int, "array.array[int]"]]


class PassedDescriptor:
    """A copy of a descriptor, there until it has been sent or is dropped with its frame."""

    __slots__ = ("number",)

    def __init__(self, descriptor: int) -> None:
        """Raise OSError if there is no room for one more."""
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
    """The descriptors that came with what was read from one socket, in their order.

    Belongs to the reader of that socket.
    """

    def __init__(self) -> None:
        self._unclaimed: deque[int | None] = deque()  # None: there was no room for it

    def receive(self, connection: socket.socket, space: memoryview, *, waits: bool = True) -> int:
        """Receive like ``recv_into``. Raises OSError, and WireError for unexpected descriptors."""
        flags = WAITING if waits else NOT_WAITING
        count, ancillary, said, _ = connection.recvmsg_into((space,), ROOM, flags)
        if ancillary or said & TRUNCATED:
            self.add(ancillary, said)
        return count

    def add(self, ancillary: Sequence[tuple[int, int, bytes]], said: int) -> None:
        """Add those that ``recvmsg_into`` has returned. Raises WireError if they are unexpected."""
        came = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came.frombytes(data[: len(data) // _ITEM * _ITEM])
        self._unclaimed.extend(came)
        if said & TRUNCATED:
            if came:
                raise WireError("several descriptors came at once; expected one for each region")
            self._unclaimed.append(None)
        if len(self._unclaimed) > MAX_UNCLAIMED:
            raise WireError(f"more than {MAX_UNCLAIMED} descriptors came without their regions")

    def take(self) -> int:
        """Return the next descriptor, which is the caller's to close.

        Raises WireError if none came, and OSError if this process had no room for it.
        """
        if not self._unclaimed:
            raise WireError("a REGION frame came without a descriptor")
        descriptor = self._unclaimed.popleft()
        if descriptor is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return descriptor

    def close(self) -> None:
        """Close those that were not taken."""
        while self._unclaimed:
            descriptor = self._unclaimed.popleft()
            if descriptor is not None:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()
