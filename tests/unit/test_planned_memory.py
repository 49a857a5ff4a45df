"""The shared memory of planned calls, on the caller's side."""

import numpy as np
import pytest

from opdispatch.tensors.tensor import Tensor
from opdispatch_client.lanes.call_plan import CallPlan
from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.planned_memory import PlannedMemory
from opdispatch_client.lanes.routes import DirectRoute
from opdispatch_wire.calls import call_request
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.planned_replies import ReplyForm
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.shared_mapping import PAGE, page_range
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2

LARGE = np.arange(1 << 16, dtype=np.float32)


class Side:
    """A caller's end of a lane, what it puts, and the plan of calls of one large array."""

    def __init__(self, budget=None):
        self.arena = TensorArena(budget=budget)
        self.put = []
        self.memory = CallerLaneMemory(self.arena, lambda *frame: self.put.append(frame[0]))
        placing = CallerLaneMemory(TensorArena(), lambda *frame: None).new_call()
        request = call_request("a::b", (LARGE,), {}, memory=placing)
        route = DirectRoute(execution_pb2.Route(epoch=1))
        self.plan = CallPlan.of(request, (LARGE,), {}, None, DirectWay(route, None, None), 1 << 20)

    def begin(self, array):
        return PlannedMemory.of(self.plan, [array], None, self.memory, self.memory.peer)

    def blocks(self):
        return sum(len(region.live) for region in self.arena._regions.values())


@pytest.fixture
def side():
    return Side()


def test_the_arguments_are_held_until_the_reply_is_read(side):
    assert side.plan.shares
    call = side.begin(LARGE)
    request = execution_pb2.CallRequest.FromString(call.encode(7))
    assert side.put == [FrameKind.REGION]
    memory = request.args[0].tensor.memory
    assert memory.length == LARGE.nbytes
    region = side.arena._regions[memory.region].owned.mapping
    there = region.window(memory.offset, memory.length, writable=False).array(
        LARGE.shape, LARGE.dtype
    )
    assert (there == LARGE).all()
    assert side.memory.replied(7) is call.memory
    side.memory.hold(7, call.memory)
    reply = ReplyForm.of([np.ones(2)], "w").write(7, [np.ones(2)])
    assert call.read(reply, 2)[0].tolist() == [1, 1]
    assert side.memory.replied(7) is None
    assert not call.memory.placed.held


def test_a_reply_of_another_kind_leaves_the_memory_to_its_reader(side):
    call = side.begin(LARGE)
    call.encode(7)
    error = execution_pb2.CallReply(id=7)
    error.error.message = "no"
    assert call.read(error.SerializeToString(), 2) is None
    assert call.memory.placed.held
    assert side.memory.replied(7) is call.memory


def test_one_array_that_is_given_twice_is_placed_once(side):
    placed = side.memory.new_call().placed
    first, second = placed.put_together([LARGE] * 2, [(0, LARGE.dtype), (1, LARGE.dtype)])
    assert first == second
    assert len(placed.held) == side.blocks() == 1


def test_arrays_of_one_call_have_one_block_and_pages_of_their_own(side):
    arrays = [np.arange(n, dtype=np.int8) for n in (1, PAGE, PAGE + 1, 3 * PAGE - 1)]
    arrays.append(Tensor(np.arange(PAGE, dtype=">i4")[::2]))
    wire = [np.dtype(np.int8)] * 4 + [np.dtype(np.int32)]
    placed = side.memory.new_call().placed
    places = placed.put_together(arrays, list(enumerate(wire)))
    assert side.blocks() == 1
    last = 0
    for (region, offset, length, read_only), array, dtype in zip(places, arrays, wire, strict=True):
        start, stop = page_range(offset, length)
        assert start >= last
        last = stop
        mapping = side.arena._regions[region].owned.mapping
        there = mapping.window(offset, length, writable=False).array(
            (length // dtype.itemsize,), dtype
        )
        assert there.tolist() == (array.array if isinstance(array, Tensor) else array).tolist()
        assert not read_only
    # Of one that is kept, the other side releases the block.
    block = placed.keep(places[1][:2])
    placed.release()
    assert side.blocks() == 1
    del block
    side.arena.trim(idle_seconds=1e9)
    assert side.blocks() == 0
    assert not side.arena.check_invariants()


def test_an_array_of_the_arena_is_sent_as_it_is_beside_a_copy(side):
    own = side.arena.empty(LARGE.shape, LARGE.dtype)
    placed = side.memory.new_call().placed
    places = placed.put_together([own, 1, LARGE], [(0, own.dtype), (2, LARGE.dtype)])
    assert places[1] == 1
    block = side.arena.find(own.__array_interface__["data"][0], own.nbytes)
    assert places[0][:2] == (block.region, block.offset)
    assert side.blocks() == 2


def test_without_room_no_plan_holds():
    side = Side(MemoryBudget(0))
    assert side.begin(LARGE) is None
    assert PlannedMemory.of(side.plan, [LARGE], None, None, None) is None


def test_a_lane_that_has_ended_holds_nothing(side):
    call = side.begin(LARGE)
    side.memory.end()
    with pytest.raises(LaneClosedError):
        call.encode(7)
