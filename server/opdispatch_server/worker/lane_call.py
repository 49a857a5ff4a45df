"""One call on an interpreter's local lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch_server.call_context import CallContext
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.v1 import execution_pb2

if TYPE_CHECKING:
    from opdispatch.errors import OpdispatchError
    from opdispatch_server.worker.kernel_lane import KernelLane
    from opdispatch_server.worker.library_turns import LibraryTurns


class LaneCall:
    """It is dropped if it is cancelled while it waits for its turn.

    ``tensors`` are its large ones, and those of its reply, where they are in no shared memory.
    """

    __slots__ = ("context", "has_waited", "is_cancelled", "lane", "request", "size", "tensors")

    def __init__(
        self,
        lane: KernelLane,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CalleeTensors,
    ) -> None:
        self.lane = lane
        self.request = request
        self.context = context
        self.size = tensors.frame_bytes
        self.tensors = tensors
        self.has_waited = False
        self.is_cancelled = False

    @property
    def source(self) -> KernelLane:
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
