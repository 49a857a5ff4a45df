"""Renaming the regions of messages on their way through the daemon."""

import numpy as np
import pytest

from opdispatch_wire.calls import call_request, undecoded_arguments
from opdispatch_wire.errors import WireError
from opdispatch_wire.region_names import rename_regions, shared_memory_of
from opdispatch_wire.v1 import execution_pb2 as pb
from opdispatch_wire.v1.values_pb2 import SharedMemory, Tensor, Value


def shared(region, offset=64):
    memory = SharedMemory(region=region, offset=offset, length=8)
    return Tensor(dtype="float32", shape=[2], memory=memory)


def a_request():
    request = call_request("t::f", [np.ones(2), 3, [None, 4], {"a": 1}], {"k": 5, "x": [1]})
    request.args[2].list.items[0].tensor.CopyFrom(shared(1))
    request.args[3].dict.entries[0].value.tensor.CopyFrom(shared(2, 128))
    request.kwargs["k"].tensor.CopyFrom(shared(1))
    return request


def a_reply():
    reply = pb.CallReply(returns=[Value(tensor=shared(1)), Value(integer=1)])
    reply.mutations.add(value=shared(2))
    reply.mutations.add()  # in place
    reply.mutations.add(value=Tensor(dtype="float32"))
    return reply


def test_every_tensor_in_shared_memory_is_found_and_renamed():
    for message, count in ((a_request(), 3), (a_reply(), 2)):
        places = rename_regions(message, {1: 11, 2: 12, 3: 13})
        assert len(places) == count
        again = type(message).FromString(message.SerializeToString())
        assert [(m.region, m.offset) for m in shared_memory_of(again)] == places
        assert {region for region, _ in places} == {11, 12}


def test_numbers_may_change_places():
    message = a_request()
    assert rename_regions(message, {1: 2, 2: 1}) == [(2, 64), (1, 128), (2, 64)]


def test_messages_without_shared_memory_stay_as_they_are():
    for message in (call_request("t::f", [np.ones(3), [1, {"a": None}]], {"b": 2}), pb.CallReply()):
        before = message.SerializeToString(deterministic=True)
        assert rename_regions(message, {}) == []
        assert message.SerializeToString(deterministic=True) == before


def test_a_region_that_was_not_passed_is_refused():
    with pytest.raises(WireError, match="names region 2, which its sender has not passed"):
        rename_regions(a_request(), {1: 11})


def test_who_only_chooses_a_kernel_needs_no_memory():
    request = a_request()
    del request.args[3]
    args, kwargs = undecoded_arguments(request)
    assert (args[2][0].shape, kwargs["k"].dtype) == ((2,), np.float32)
    request.args[2].list.items[0].tensor.ClearField("shape")
    request.args[2].list.items[0].tensor.memory.length = 4  # a 0-d one is not decoded either
    assert undecoded_arguments(request)[0][2][0].shape == ()
