"""A call on a lane that runs, or waits for its turn."""

from __future__ import annotations

from typing import Protocol

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.v1 import execution_pb2


class RunsCalls(Protocol):
    """A lane, as its calls see it."""

    def __hash__(self) -> int:
        """Return a hash: lanes take turns, each as one source."""

    def start_call(self, call: LaneCall, turns: LibraryTurns[LaneCall]) -> None:
        """Run a call whose turn it is, and those that wait for it to end, in a thread."""

    def refuse_call(self, call: LaneCall, error: OpdispatchError) -> None:
        """Reply to a call that has waited for its turn, and never starts."""

    def answer_call(self, call: LaneCall) -> None:
        """Run a call, unless it is not awaited any more, and reply."""

    def flush(self) -> None:
        """Send the replies that have been put."""


class LaneCall:
    """It is dropped if it is cancelled while it waits for its turn.

    ``tensors`` are its large ones, and those of its reply, where they are in no shared memory.
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
        """The lane that it came over."""
        return self.lane

    @property
    def operator(self) -> str:
        """The kernel that is called."""
        return self.request.operator

    def start(self, turns: LibraryTurns[LaneCall]) -> None:
        """Run it in a thread of its lane's: its turn has come."""
        self.lane.start_call(self, turns)

    def refuse(self, error: OpdispatchError) -> None:
        """Reply with ``error``: it never starts."""
        self.lane.refuse_call(self, error)
