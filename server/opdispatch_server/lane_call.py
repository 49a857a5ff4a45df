"""One call on an interpreter's lane, from its coming to its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch_server.call_context import CallContext
from opdispatch_wire.v1 import execution_pb2

if TYPE_CHECKING:
    from opdispatch_server.kernel_lane import KernelLane
    from opdispatch_server.library_turns import LibraryTurns


class LaneCall:
    """One call; it is dropped if it is cancelled while it waits for its turn."""

    __slots__ = ("context", "is_cancelled", "lane", "request", "size")

    def __init__(
        self,
        lane: KernelLane,
        request: execution_pb2.CallRequest,
        context: CallContext,
        size: int,
    ) -> None:
        self.lane = lane
        self.request = request
        self.context = context
        self.size = size
        self.is_cancelled = False

    @property
    def source(self) -> KernelLane:
        """Who sent it."""
        return self.lane

    @property
    def operator(self) -> str:
        """What it calls."""
        return self.request.operator

    def start(self, turns: LibraryTurns[LaneCall]) -> None:
        """Runs it in a thread of its lane's: its turn has come."""
        self.lane.start_call(self, turns)
