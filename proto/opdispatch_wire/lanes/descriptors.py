"""Descriptors that travel over a unix socket, beside its bytes (SCM_RIGHTS, ``man 7 unix``)."""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque

from opdispatch_wire.errors import WireError

MAX_UNCLAIMED = 8
"""How many may have come whose frames have not; a peer that sends more is not believed."""

_ITEM = array.array("i").itemsize
# Room for one: the system ends a read after the bytes that a descriptor came with.
_ROOM = socket.CMSG_LEN(_ITEM)
# Plain ints: to combine flags of the socket module takes longer than to receive.
_WAITING = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_NOT_WAITING = _WAITING | int(socket.MSG_DONTWAIT)
_TRUNCATED = int(socket.MSG_CTRUNC)

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
        flags = _WAITING if waits else _NOT_WAITING
        count, ancillary, said, _ = connection.recvmsg_into((space,), _ROOM, flags)
        if not ancillary and not said & _TRUNCATED:
            return count
        came = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                came.frombytes(data[: len(data) // _ITEM * _ITEM])
        self._unclaimed.extend(came)
        if said & _TRUNCATED:
            if came:
                raise WireError("several descriptors came at once; expected one for each region")
            self._unclaimed.append(None)
        if len(self._unclaimed) > MAX_UNCLAIMED:
            raise WireError(f"more than {MAX_UNCLAIMED} descriptors came without their regions")
        return count

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
