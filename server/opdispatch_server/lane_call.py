"""One call on an interpreter's local lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch_server.call_context import CallContext
from opdispatch_wire import lane_messages
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES
from opdispatch_wire.detached_tensors import CALL_REQUEST, detach
from opdispatch_wire.v1 import execution_pb2

if TYPE_CHECKING:
    from opdispatch_server.kernel_lane import KernelLane
    from opdispatch_server.library_turns import LibraryTurns


class LaneCall:
    """It is dropped if it is cancelled while it waits for its turn.

    ``tensors`` are its large ones, and those of its reply, where they are in no shared memory.
    """

    __slots__ = ("context", "is_cancelled", "lane", "request", "size", "tensors")

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
        self.is_cancelled = False

    @property
    def source(self) -> KernelLane:
        """The lane that it came over."""
        return self.lane

    @property
    def operator(self) -> str:
        """What is called."""
        return self.request.operator

    def start(self, turns: LibraryTurns[LaneCall]) -> None:
        """Runs it in a thread of its lane's: its turn has come."""
        self.lane.start_call(self, turns)


def read_call(
    payload: bytes | memoryview, *, shares_memory: bool
) -> tuple[execution_pb2.CallRequest, CalleeTensors]:
    """The call in a frame, whose large tensors stay where they are. Raises WireError.

    Not those of a lane that shares memory: there the few that are inline are taken as they are.

    Protobuf would copy them while no other thread can run: no heartbeat either.
    """
    request, size = execution_pb2.CallRequest(), len(payload)
    arguments: list[memoryview] = []
    if len(payload) > CHUNK_BYTES and not shares_memory:
        payload, arguments = detach(payload, CALL_REQUEST, BESIDE_BYTES)
    lane_messages.parsed(request, payload)
    return request, CalleeTensors(arguments, size, is_limited=not request.chunks_reply)
