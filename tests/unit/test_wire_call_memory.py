"""Calls whose tensors travel in shared memory, between two processes."""

import gc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opdispatch.errors import ArgumentError
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.calls import result_of_reply
from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.call_memory import (
    CallerMemory,
    copy_elements,
    skip_for,
)
from opdispatch_wire.shared_memory.peer_memory import PeerMemory
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2 as pb
from tests.shared_memory_lane import Caller, own_mappings

N = 1 << 16
F32 = np.dtype(np.float32)


@pytest.fixture
def caller():
    gc.collect()
    before = own_mappings()
    made = Caller()
    yield made
    made.close()
    gc.collect()
    assert own_mappings() == before


def ones(n=N, dtype=np.float32):
    return np.ones(n, dtype)


def empty(caller, value, n=N):
    array = caller.arena.empty((n,), F32)
    array[:] = value
    return array


def in_arena(caller, array):
    return caller.arena.find(array.__array_interface__["data"][0], array.nbytes) is not None


def test_large_tensors_go_through_memory_both_ways(caller):
    x, y = ones() * 3, ones() * 4
    for _ in range(3):
        memory = caller.send("add", x, y)
        assert len(memory.placed.held) == 2
        reply = pb.CallReply.FromString(caller.receive()[1])
        assert reply.returns[0].tensor.data == b""
        assert reply.returns[0].tensor.memory.length == 4 * N
        result = result_of_reply(reply, (x, y), {}, memory)
        memory.release()
        assert (result == 7).all()
        result += 1  # ours to write to
    assert caller.state()["mappings"] <= 4
    assert len(caller.arena.regions) == 1


def test_small_tensors_go_inline(caller):
    memory = caller.send("add", ones(4), ones(4))
    assert memory.placed.held == {}
    reply = pb.CallReply.FromString(caller.receive()[1])
    assert len(reply.returns[0].tensor.data) == 16
    assert result_of_reply(reply, (), {}, memory).tolist() == [2] * 4


def test_an_array_of_empty_and_its_slices_are_not_copied(caller):
    x = empty(caller, 2, 2 * N)
    regions = caller.arena.regions
    for view in (x, x[N:], x[7 : 7 + N], x.reshape(2, N)[1], x.view(np.int32)):
        memory = caller.send("touch", view)
        ((region, offset),) = memory.placed.held
        block = caller.arena.find(x.__array_interface__["data"][0], 1)
        distance = view.__array_interface__["data"][0] - x.__array_interface__["data"][0]
        assert (region, offset) == (block.region, block.offset + distance)
        expected = int(view.flat[0])
        reply = pb.CallReply.FromString(caller.receive()[1])
        assert result_of_reply(reply, (), {}) == expected
        memory.release()
    strided = caller.send("touch", x[::2])
    assert strided.placed.held.keys().isdisjoint({(region, offset)})
    caller.receive()
    strided.release()
    assert caller.arena.regions == regions


def test_an_empty_array_may_be_collected_while_its_call_is_running(caller):
    x = empty(caller, 5)
    place = x.__array_interface__["data"][0]
    memory = caller.send("add", x, x)
    del x
    other = empty(caller, 6)
    assert other.__array_interface__["data"][0] != place
    result = result_of_reply(pb.CallReply.FromString(caller.receive()[1]), (), {}, memory)
    assert (result == 10).all()
    memory.release()
    assert empty(caller, 7).__array_interface__["data"][0] == place


@pytest.mark.parametrize(
    "array",
    [
        np.arange(2 * N, dtype=np.float32)[::2],
        np.arange(N, dtype=">f4"),
        np.asfortranarray(np.arange(N, dtype=np.float64).reshape(16, -1)),
        np.arange(N).astype(ml_dtypes.bfloat16),
        (np.arange(2 * N) % 16).astype(ml_dtypes.float8_e4m3fn)[::2],
        np.broadcast_to(np.float32(3), (N,)),
        np.arange(N * 4, dtype=np.uint8).view(bool),
        np.arange(N, dtype=np.uint8)[1:].view(bool)[::-1],
    ],
    ids=lambda a: f"{a.dtype.str}{a.dtype.name}{a.strides}",
)
def test_any_layout_arrives(caller, array):
    caller.threshold = 100
    memory = caller.send("first", [array])
    assert len(memory.placed.held) == 1
    reply = pb.CallReply.FromString(caller.receive()[1])
    assert reply.returns[0].tensor.HasField("memory") == (array.nbytes >= 1 << 16)
    result = result_of_reply(reply, (), {}, memory)
    memory.release()
    np.testing.assert_array_equal(result, array)
    if array.dtype == bool:
        assert set(result.view(np.uint8).tolist()) == {0, 1}
    assert result.flags.writeable


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.int8, ">u2", bool, np.complex64, ml_dtypes.bfloat16]),
        hnp.array_shapes(max_dims=3, max_side=40),
        elements=st.just(1),
    ),
    st.integers(0, 2),
    st.integers(0, 130),
)
def test_copies_have_the_same_elements_wherever_they_are(array, axis, distance):
    wire = array.dtype.newbyteorder("<")
    array = array[(slice(None),) * (axis % array.ndim) + (slice(None, None, -1),)]
    arena = TensorArena(step=1 << 16)
    block = arena.allocate(array.nbytes + distance)
    target = block.array((array.nbytes,), np.dtype(np.uint8), skip=distance // 8 * 8)
    copy_elements(target, array, wire)
    target = target.view(wire).reshape(array.shape)
    np.testing.assert_array_equal(target, array)


def test_copies_avoid_distances_at_which_processors_are_slow():
    for address in range(3 * PAGE):
        skip = skip_for(address)
        distance = (address - skip) % PAGE
        assert distance == 0 or 64 <= distance <= PAGE - 64
        assert skip % 64 == 0


# -- arguments that are written to -----------------------------------------------------------------


def test_an_operator_writes_to_an_array_of_empty_in_place(caller):
    x, y, out = empty(caller, 1), empty(caller, 2), empty(caller, 0)
    result = caller.call("add_out", x, y, out=out)
    assert result is out
    assert (out == 3).all()
    assert caller.state()["results"] == 0


def test_an_ordinary_array_gets_its_new_contents_without_their_being_sent(caller):
    x, y = ones(), ones()
    memory = caller.send("add_", x, y)
    reply = pb.CallReply.FromString(caller.receive()[1])
    assert not reply.mutations[0].HasField("value")
    assert result_of_reply(reply, (x, y), {}, memory) is None
    memory.release()
    assert (x == 2).all()
    assert (y == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, ">f4", np.int64])
@pytest.mark.parametrize("step", [1, -1, 2])
def test_lists_strides_and_byte_orders_are_written_to(caller, dtype, step):
    whole = [ones(2 * N, dtype), ones(2 * N, dtype)]
    views = [array[::step] for array in whole]
    caller.call("double_all_", [views[0], Tensor(views[1])])
    for view, array in zip(views, whole, strict=True):
        assert (view == 2).all()
        assert array.sum() == view.size * 2 + (array.size - view.size)


def test_bools_are_checked_in_a_copy_and_come_back(caller):
    x, y = ones(4 * N, bool), np.zeros(4 * N, bool)
    memory = caller.send("add_out", x, y, out=y)
    reply = pb.CallReply.FromString(caller.receive()[1])
    assert reply.mutations[0].value.HasField("memory")
    assert result_of_reply(reply, (x, y), {"out": y}, memory) is y
    memory.release()
    assert y.all()


def test_an_array_that_is_passed_twice_is_one_array_there(caller):
    x = ones()
    memory = caller.send("add_", x, x)
    assert len(memory.placed.held) == 1
    result_of_reply(pb.CallReply.FromString(caller.receive()[1]), (x, x), {}, memory)
    memory.release()
    assert (x == 2).all()


@pytest.mark.parametrize("make", [lambda caller: ones(), lambda caller: empty(caller, 1)])
def test_a_read_only_array_does_not_change(caller, make):
    x = make(caller)
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"writes to argument 0, .* read-only"):
        caller.call("add_", x, ones())
    assert (x == 1).all()
    assert caller.call("flags", x) is False


def test_a_call_that_fails_changes_no_ordinary_array(caller):
    x, y = ones(), empty(caller, 1)
    for array in (x, y):
        with pytest.raises(WireError, match="on purpose"):
            caller.call("fail", array)
    assert (x == 1).all()
    assert (y == 2).all(), "as in one process"


def test_a_mutation_without_contents_needs_an_argument_in_memory():
    reply = pb.CallReply()
    reply.mutations.add().argument.position = 0
    memory = CallerMemory(None, PeerMemory(), on_release=print)
    for given_memory in (None, memory):
        with pytest.raises(WireError, match=r"^\$\.mutations\[0\] has no value, and argument 0"):
            result_of_reply(reply, (ones(),), {}, given_memory)


# -- what outlives its call ------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["keep", "keep_"])
@pytest.mark.parametrize("make", [lambda caller: ones(), lambda caller: empty(caller, 1)])
def test_array_kept_by_kernel_never_shows_data_of_another_call(caller, operator, make):
    x = make(caller)
    caller.call(operator, x)
    assert caller.call("touch", ones() * 9) == 9  # the same block, if it was a copy
    x[:] = 8
    assert caller.call("touch", x) == 8
    assert caller.call("kept") == [N - 2]
    if operator == "keep_":
        caller.call("write_later", ones(1), 3.0)
        assert (x == 8).all()
        assert caller.call("kept") == [3 * (N - 2)]
    many = caller.state()["mappings"]
    caller.call("forget")
    for _ in range(20):
        caller.call(operator, x)
        caller.call("forget")
    assert caller.state()["mappings"] <= many + 1


def test_a_result_is_held_until_its_last_view_is_collected(caller):
    result = caller.call("add", ones(), ones())
    view = result[5:]
    del result
    assert caller.state()["results"] == 1
    del view
    assert caller.state()["results"] == 0
    results = [caller.call("add", ones(), ones() * i) for i in range(5)]
    assert [int(result[0]) for result in results] == [1, 2, 3, 4, 5]


def test_results_may_be_arguments(caller):
    x = ones()
    for _ in range(5):
        x = caller.call("add", x, x)
    assert (x == 32).all()
    assert caller.state()["results"] == 1
