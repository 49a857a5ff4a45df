"""Interface of a blocking session's lane for calls."""

from __future__ import annotations

from typing import Protocol

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.pending_calls import OnDone
from opdispatch_wire.v1 import execution_pb2


class CallLane(Protocol):
    """A lane for calls, each of which has its own id. Errors are those of ``BlockingLane``."""

    @property
    def max_message_bytes(self) -> int:
        """Longest request in bytes that the other side accepts, without its large tensors."""

    @property
    def inline_bytes(self) -> int | None:
        """Size in bytes up to which tensors are inline; None if all have to be."""

    @property
    def is_closed(self) -> bool:
        """Whether the lane has ended, so that calls on it fail."""

    @property
    def is_connected(self) -> bool:
        """Whether the lane ends with its connection; otherwise it connects again by itself."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        *,
        tensors: CallTensors | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call and wait at most ``timeout`` seconds for the reply.

        ``tensors`` holds the large tensors of the request, and receives those of the reply.
        """

    def begin(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        on_done: OnDone,
        *,
        tensors: CallTensors | None = None,
    ) -> int:
        """Begin a call and return its id. The request is sent by ``flush`` at the latest.

        ``on_done`` is called once with the reply or an error, unless the call is cancelled.
        """

    def flush(self) -> None:
        """Send the requests of calls that have begun."""

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
