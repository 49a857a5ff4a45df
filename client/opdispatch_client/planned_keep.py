"""The results that a planned call keeps in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from opdispatch_client.remote_value import remote_from_proto
from opdispatch_client.value_lease import Lease
from opdispatch_wire.remote_values import PREFIX_BYTES, RemoteFacts
from opdispatch_wire.v1 import remote_pb2, values_pb2


class NewValue(Protocol):
    """Makes what stands for a value."""

    def __call__(self, number: bytes, facts: RemoteFacts, interpreter: str) -> Any:
        """Return what stands for the value of that id, in the interpreter of that name."""


class PlannedKeep:
    """Those of one call, of which the ids begin with ``prefix``.

    ``new_of`` returns what makes the values of a lease.
    """

    __slots__ = ("_new_of", "lease", "prefix")

    def __init__(self, lease: Lease, new_of: Callable[[Lease], NewValue]) -> None:
        self.lease = lease
        self._new_of = new_of
        self.prefix = os.urandom(PREFIX_BYTES)

    def message(self) -> remote_pb2.Keep:
        """Return what a request says of it."""
        return remote_pb2.Keep(session=self.lease.session, prefix=self.prefix)

    def make(self, message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
        """Return what stands for a value. Raises WireError."""
        return self._new_of(self.lease)(*remote_from_proto(message, at))

    def abandon(self) -> None:
        """Release what the call has kept, or keeps yet: its result is not known."""
        self.lease.release(self.prefix)
