"""Results that a planned call keeps in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from opdispatch_client.remote_value import remote_from_proto
from opdispatch_client.value_lease import Lease
from opdispatch_wire.remote_values import PREFIX_BYTES, RemoteFacts
from opdispatch_wire.v1 import remote_pb2, values_pb2


class NewValue(Protocol):
    """A function that makes the proxy of a remote value."""

    def __call__(self, number: bytes, facts: RemoteFacts, interpreter: str) -> Any:
        """Return the proxy of the value with that id in that interpreter."""


class PlannedKeep:
    """The kept results of one call, whose ids begin with ``prefix``.

    ``new_of`` returns the function that makes the proxies of a lease's values.
    """

    __slots__ = ("_new_of", "lease", "prefix")

    def __init__(self, lease: Lease, new_of: Callable[[Lease], NewValue]) -> None:
        self.lease = lease
        self._new_of = new_of
        self.prefix = os.urandom(PREFIX_BYTES)

    def message(self) -> remote_pb2.Keep:
        """Return the request's field that asks to keep the results."""
        return remote_pb2.Keep(session=self.lease.session, prefix=self.prefix)

    def make(self, message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
        """Return the proxy of a value in the reply. Raises WireError if it is malformed."""
        return self._new_of(self.lease)(*remote_from_proto(message, at))

    def abandon(self) -> None:
        """Release all values that the call has kept or will keep, as their ids are unknown."""
        self.lease.release(self.prefix)
