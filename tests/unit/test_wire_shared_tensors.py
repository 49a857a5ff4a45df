"""The tensors of messages that are in shared memory."""

import numpy as np

from opdispatch_wire.calls import call_request, undecoded_arguments
from opdispatch_wire.shared_memory.shared_tensors import shared_memory_of
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


def places(message):
    return [(memory.region, memory.offset) for memory in shared_memory_of(message)]


def test_every_tensor_in_shared_memory_is_found():
    assert places(a_request()) == [(1, 64), (2, 128), (1, 64)]
    assert places(a_reply()) == [(1, 64), (2, 64)]


def test_in_messages_without_shared_memory_there_is_none():
    for message in (call_request("t::f", [np.ones(3), [1, {"a": None}]], {"b": 2}), pb.CallReply()):
        assert places(message) == []


def test_undecoded_arguments_need_no_shared_memory():
    request = a_request()
    del request.args[3]
    args, kwargs = undecoded_arguments(request)
    assert (args[2][0].shape, kwargs["k"].dtype) == ((2,), np.float32)
    request.args[2].list.items[0].tensor.ClearField("shape")
    request.args[2].list.items[0].tensor.memory.length = 4  # a 0-d one is not decoded either
    assert undecoded_arguments(request)[0][2][0].shape == ()
