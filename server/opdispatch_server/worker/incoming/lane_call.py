"""A call on a local lane that runs, or waits for its turn."""

from __future__ import annotations

from typing import Protocol

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.v1 import execution_pb2


class RunsCalls(Protocol):
    """Interface of a lane for its calls."""

    def __hash__(self) -> int:
        """Return a hash: as a source of calls, the lane takes turns with others."""

    def start_call(self, call: LaneCall, turns: LibraryTurns[LaneCall]) -> None:
        """Run a call whose turn has come, and those that wait for it to end, in a new thread."""

    def refuse_call(self, call: LaneCall, error: OpdispatchError) -> None:
        """Reply with ``error`` to a call that waited for its turn and will never start."""

    def answer_call(self, call: LaneCall) -> None:
        """Run a call and reply, unless it was cancelled."""

    def end_call(self, call: LaneCall) -> None:
        """Send the buffered replies, that of the call among them, and forget the call."""


class LaneCall:
    """A call on a local lane. If it is cancelled while it waits for its turn, it never runs.

    ``tensors`` holds large tensors of the request and the reply that are not in shared memory.
    """

    __slots__ = ("context", "is_cancelled", "lane", "request", "size", "tensors", "waits_since")

    def __init__(
        self,
        lane: RunsCalls,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CalleeTensors,
    ) -> None:
        self.lane = lane
        self.request = request
        self.context = context
        self.size = tensors.frame_bytes
        self.tensors = tensors
        self.waits_since = 0
        self.is_cancelled = False

    @property
    def source(self) -> RunsCalls:
        """The lane on which the call came."""
        return self.lane

    @property
    def operator(self) -> str:
        """The name of the operator that is called."""
        return self.request.operator

    def start(self, turns: LibraryTurns[LaneCall]) -> None:
        """Run the call in a new thread of its lane, because its turn has come."""
        self.lane.start_call(self, turns)

    def refuse(self, error: OpdispatchError) -> None:
        """Reply with ``error``; the call will never start."""
        self.lane.refuse_call(self, error)
