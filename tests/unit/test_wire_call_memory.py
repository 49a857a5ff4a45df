"""Calls whose tensors travel in shared memory, between two processes."""

import gc
import os
import signal
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opdispatch.errors import ArgumentError
from opdispatch.schema_parser import parse_schema
from opdispatch.tensor import Tensor
from opdispatch_wire.call_memory import (
    CalleeMemory,
    CallerMemory,
    PlacedTensors,
    ResultBlocks,
    copy_elements,
    skip_for,
)
from opdispatch_wire.calls import call_request, decode_arguments, result_of_reply
from opdispatch_wire.errors import WireError
from opdispatch_wire.peer_memory import PeerMemory
from opdispatch_wire.shared_mapping import PAGE
from opdispatch_wire.tensor_arena import TensorArena
from opdispatch_wire.tensors import tensor_from_proto
from opdispatch_wire.v1 import execution_pb2 as pb
from opdispatch_wire.v1 import values_pb2
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
    target = block.array(array.shape, wire, skip=distance // 8 * 8)
    copy_elements(target, array)
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
    with pytest.raises(ArgumentError, match=r"argument 0 is written to .* read-only"):
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
def test_what_a_kernel_kept_never_shows_another_calls_data(caller, operator, make):
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


# -- limits, faults, and the end -----------------------------------------------------------------


def test_without_memory_tensors_go_inline_with_one_warning():
    caller = Caller(limit=1 << 13, threshold=1 << 12)
    x = ones(1 << 12)
    with pytest.warns(RuntimeWarning, match="sent inline"):
        assert (caller.call("add", x, x * 2) == 3).all()
    assert (caller.call("add", x, x * 2) == 3).all()
    caller.close()


def test_regions_that_are_given_back_are_unmapped_by_the_peer(caller):
    caller.call("touch", ones())
    assert caller.state()["mappings"] == 2
    caller.arena.trim()
    assert caller.state() == {"descriptors": 0, "mappings": 0, "results": 0}
    assert caller.call("touch", ones()) == 1


def test_nothing_outlives_a_peer_that_was_killed(caller):
    gc.collect()
    result = caller.call("add", ones(), ones())
    pending = caller.send("add", ones(), ones())
    os.kill(caller.process.pid, signal.SIGKILL)
    caller.process.wait(timeout=30)
    regions = set(pending.placed.regions)
    pending.abandon()
    assert not regions & set(caller.arena.regions), "nobody gets the pages of a pending call"
    caller.peer.close()
    assert (result == 2).all(), "what was received stays valid"
    caller.arena.close()
    assert own_mappings() == {"descriptors": 0, "mappings": 1}
    del result
    assert own_mappings() == {"descriptors": 0, "mappings": 0}


def test_a_place_that_is_not_the_callers_fails_that_call_alone(caller):
    x = ones()
    memory = caller.memory()
    good = call_request("touch", (x,), {}, memory=memory)
    caller.packets.pass_regions(caller.arena, memory.placed.regions)
    for change, message in (
        ({"region": 77}, r"^\$\.args\[0\]\.memory\.region is 77, which the peer has not passed"),
        ({"offset": 1 << 40}, r"^\$\.args\[0\]\.memory: 262144 bytes from 1099511627776"),
        ({"offset": 3}, r"^\$\.args\[0\]\.memory\.offset is 3; float32 is aligned"),
        ({"length": 4}, r"^\$\.args\[0\]\.memory\.length is 4; its shape and dtype need 262144"),
    ):
        bad = pb.CallRequest()
        bad.CopyFrom(good)
        for field, value in change.items():
            setattr(bad.args[0].tensor.memory, field, value)
        caller.packets.send(b"C", bytes(4) + bad.SerializeToString())
        with pytest.raises(WireError, match=message):
            result_of_reply(pb.CallReply.FromString(caller.receive()[1]), (), {})
    caller.packets.send(b"C", bytes(4) + good.SerializeToString())
    assert result_of_reply(pb.CallReply.FromString(caller.receive()[1]), (), {}) == 1


def test_a_release_of_what_is_not_held_is_refused():
    arena, results = TensorArena(), ResultBlocks()
    placed = PlacedTensors(arena)
    message = values_pb2.SharedMemory()
    assert placed.place(message, ones(), F32, None, in_place=False)
    results.hold(placed)
    with pytest.raises(WireError, match="no result is held at 1 of region 1"):
        results.release(1, 1)
    results.release(message.region, message.offset)
    with pytest.raises(WireError, match="no result is held"):
        results.release(message.region, message.offset)
    assert len(results) == 0
    placed.place(message, ones(), F32, None, in_place=False)
    results.hold(placed)
    results.close()
    arena.trim()
    assert arena.regions == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": b"1234"}, r"^\$ has elements both in data and in memory"),
        ({"shape": [0]}, r"^\$\.memory\.length is 4; its shape and dtype need 0"),
        ({"shape": [-1]}, r"^\$\.shape\[0\] is -1"),
        ({"dtype": "bool"}, r"^\$\.memory\.length is 4; its shape and dtype need 1"),
        ({}, r"^\$\.memory: no memory is shared with the peer; expected data"),
    ],
)
def test_malformed_tensors_in_memory_are_refused(change, message):
    memory = values_pb2.SharedMemory(region=1, length=4)
    fields = {"dtype": "float32", "shape": [1], "memory": memory} | change
    with pytest.raises(WireError, match=message):
        tensor_from_proto(values_pb2.Tensor(**fields))


def test_no_bytes_are_no_memory():
    memory = values_pb2.SharedMemory(region=1)
    with pytest.raises(WireError, match=r"^\$\.memory names no bytes"):
        tensor_from_proto(values_pb2.Tensor(dtype="float32", shape=[0], memory=memory))


def test_odd_bools_in_memory_are_refused():
    arena, peer = TensorArena(), PeerMemory()
    placed = PlacedTensors(arena, threshold=1)
    message = values_pb2.Tensor(dtype="bool", shape=[3])
    placed.place(message.memory, np.array([0, 1, 2], np.uint8), np.dtype("u1"), 0, in_place=False)
    region = message.memory.region
    peer.add_region(region, os.dup(arena.descriptor(region)))
    memory = CalleeMemory(arena, peer.lend(writes=False, on_release=print))
    with pytest.raises(WireError, match=r"^\$\.memory has a byte that is no bool"):
        tensor_from_proto(message, memory=memory)


SCHEMA = parse_schema("t::f(Tensor x, Tensor(a!) y) -> ()")


@given(st.data())
def test_requests_of_random_bytes_give_arrays_or_errors(data):
    """Fields of the wire in any combination, over one real region."""
    arena, peer = TensorArena(step=1 << 16), PeerMemory()
    block = arena.allocate(1 << 16)
    peer.add_region(block.region, os.dup(arena.descriptor(block.region)))
    numbers = st.one_of(st.integers(0, 1 << 17), st.sampled_from([2**63, 2**64 - 1]))
    request = pb.CallRequest(operator="t::f")
    for _ in range(data.draw(st.integers(0, 3))):
        tensor = request.args.add().tensor
        tensor.dtype = data.draw(st.sampled_from(["float32", "bool", "uint8", "x", ""]))
        tensor.shape.extend(data.draw(st.lists(st.integers(-1, 1 << 16), max_size=3)))
        tensor.memory.region = data.draw(st.integers(0, 2))
        tensor.memory.offset, tensor.memory.length = data.draw(numbers), data.draw(numbers)
        tensor.memory.read_only = data.draw(st.booleans())
        if data.draw(st.booleans()) and tensor.dtype in ("float32", "uint8"):
            size = 4 if tensor.dtype == "float32" else 1
            tensor.memory.length = abs(int(np.prod(tensor.shape, dtype=object))) * size % 2**64
    noise = data.draw(st.binary(max_size=8))
    position = data.draw(st.integers(0, 100))
    raw = bytearray(request.SerializeToString())
    raw[position : position + len(noise)] = noise
    try:
        request = pb.CallRequest.FromString(bytes(raw))
    except Exception:  # protobuf's own refusal; which class depends on its implementation
        return
    memory = CalleeMemory(arena, peer.lend(writes=True, on_release=lambda *_: None))
    try:
        args, kwargs = decode_arguments(request, SCHEMA, memory)
    except WireError:
        pass
    else:
        for value in (*args, *kwargs.values()):
            if isinstance(value, np.ndarray):
                value.tobytes()
                if value.flags.writeable:
                    value[...] = 1
        del args, kwargs
    gc.collect(0)
    memory.release_arguments()


def test_hostile_regions_over_a_socket_end_the_lane_they_came_over(caller):
    """Here that lane's process; the caller's own arrays are untouched."""
    x = empty(caller, 1)
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    caller.packets.send(b"R", struct.pack("<I", 9), (descriptor,))
    os.close(descriptor)
    assert caller.process.wait(timeout=30) == 1
    assert in_arena(caller, x)
    assert (x == 1).all()
