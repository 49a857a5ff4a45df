"""Interface of a blocking session's lane for calls."""

from __future__ import annotations

from typing import Protocol

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.pending_calls import OnDone
from opdispatch_wire.v1 import execution_pb2


class CallLane(Protocol):
    """A way for calls. Each has an id of its own; see ``BlockingLane`` for what is raised."""

    @property
    def max_message_bytes(self) -> int:
        """The longest request that the other side takes, in bytes, without its large tensors."""

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes none outside it."""

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""

    @property
    def is_connected(self) -> bool:
        """Whether it ends with the connection that it has."""

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        *,
        tensors: CallTensors | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call and wait for the reply; the large tensors of both are in ``tensors``."""

    def begin(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        on_done: OnDone,
        *,
        tensors: CallTensors | None = None,
    ) -> int:
        """Begin a call, which is sent by ``flush`` at the latest; return its id."""

    def flush(self) -> None:
        """Send what has begun."""

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
