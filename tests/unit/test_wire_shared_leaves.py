"""Places in shared memory as leaves of messages that are alike."""

import math

import numpy as np
import pytest

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.frame_kind import HEADER
from opdispatch_wire.lanes.frames import READ_AT_ONCE
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.planned_replies import ReplyForm, ReplyLayout
from opdispatch_wire.planned_requests import COUNT, RequestForm, RequestLayout
from opdispatch_wire.shared_leaves import SharedTensor, encode_place, place_bytes, read_shared
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from opdispatch_wire.v1 import execution_pb2, values_pb2

# Of the numbers of a place.
REGION_BYTES, OFFSET_BYTES = 5, 10
LARGE = np.zeros(THRESHOLD, np.float32)


class Memory:
    """Has one array, and notes where it was asked for it."""

    def __init__(self, array):
        self.array = array
        self.asked = []

    def place(self, message, array, dtype, value):
        if array.nbytes < THRESHOLD:
            return False
        message.memory.region, message.memory.offset = 1, 64
        message.memory.length = array.nbytes
        return True

    def read_at(self, memory, shape, dtype, *, writable, at):
        self.asked.append((memory.region, memory.offset, shape, dtype, writable))
        return self.array


@pytest.mark.parametrize("length", [1, 127, 128, 2**40])
@pytest.mark.parametrize("region", [1, 2**32 - 1])
@pytest.mark.parametrize("offset", [0, 2**64 - 1])
def test_places_have_one_length_and_are_read_by_protobuf(region, offset, length):
    for read_only in (False, True):
        data = encode_place((region, offset, length, read_only))
        assert len(data) == place_bytes(length)
        read = values_pb2.SharedMemory.FromString(data)
        place = values_pb2.SharedMemory(
            region=region, offset=offset, length=length, read_only=read_only
        )
        assert read == place


def test_bools_are_copied_and_checked():
    leaf = values_pb2.SharedMemory(region=1, length=2)
    facts = SharedTensor((2,), np.dtype(bool), None, 2)
    peers = np.array([0, 1], np.uint8)
    read = read_shared(Memory(peers.view(bool)), leaf, facts, writable=True)
    peers[:] = 2
    assert read.tolist() == [False, True]
    assert read.flags.writeable
    with pytest.raises(WireError, match="not a bool"):
        read_shared(Memory(peers.view(bool)), leaf, facts, writable=True)


def test_a_tensor_has_its_keys():
    keys = DispatchKeySet(Tensor(np.ones(2)).key_bits)
    read = read_shared(
        Memory(np.ones(2)),
        values_pb2.SharedMemory(length=16),
        SharedTensor((2,), np.dtype(float), keys, 16),
        writable=True,
    )
    assert isinstance(read, Tensor)
    assert read.key_bits == keys.raw_repr()


def test_requests_name_places_and_are_known_by_their_constants():
    request = call_request("a::b", (LARGE, np.ones(2)), {}, memory=Memory(LARGE))
    form = RequestForm.of(request, (LARGE, np.ones(2)), {})
    assert form is not None
    assert form.shared == ((0, LARGE.dtype),)
    first = form.write([(1, 4096, LARGE.nbytes, False), np.ones(2)], 1.0, 7)
    layout = RequestLayout.of(first, execution_pb2.CallRequest.FromString(first))
    assert layout is not None
    second = form.write([(3, 2**33, LARGE.nbytes, True), np.zeros(2)], None, 8)
    received = layout.read(second)
    assert received is not None
    number, timeout, leaves = received
    assert (number, timeout) == (8, None)
    memory = Memory(LARGE)
    filled = layout.filled_with(leaves, memory)
    assert filled[0] is LARGE
    assert filled[1].tolist() == [0, 0]
    assert memory.asked == [(3, 2**33, LARGE.shape, LARGE.dtype, False)]


def test_tensors_in_memory_may_be_in_the_request_of_a_form():
    args = (np.arange(THRESHOLD, dtype=np.uint8), [np.ones(THRESHOLD // 8)])
    request = call_request("a::b", args, {}, memory=Memory(args[0]))
    assert request.args[0].tensor.HasField("memory")
    form = RequestForm.of(request, args, {}, inline=True)
    assert form is not None
    assert not form.shared
    data = form.write([args[0], args[1][0]], None, 7)
    read = execution_pb2.CallRequest.FromString(data)
    assert read.args[0].tensor.data == args[0].tobytes()
    assert read.args[1].list.items[0].tensor.data == args[1][0].tobytes()
    layout = RequestLayout.of(data, read)
    assert layout is not None
    assert layout.longest == THRESHOLD
    assert RequestForm.of(request, args, {}, form.size - 1, inline=True) is None
    assert RequestForm.of(request, args, {}, form.size - 1) is not None


def test_a_planned_message_is_read_at_once_with_its_header():
    assert HEADER.size + LONGEST == READ_AT_ONCE


def test_a_request_that_names_another_length_is_refused():
    request = call_request("a::b", (LARGE,), {}, memory=Memory(LARGE))
    form = RequestForm.of(request, (LARGE,), {})
    first = form.write([(1, 4096, LARGE.nbytes, False)], None, 7)
    layout = RequestLayout.of(first, execution_pb2.CallRequest.FromString(first))
    received = layout.read(form.write([(1, 0, LARGE.nbytes - 4, False)], None, 8))
    with pytest.raises(WireError, match="length"):
        layout.filled_with(received[2], Memory(LARGE))


def test_replies_name_places_and_are_read_last():
    form = ReplyForm.of([LARGE, np.ones(2)], "w", shares=True)
    assert form is not None
    assert form.write(1, [LARGE, np.ones(2)]) is None  # where no memory is shared
    assert form.write(1, [LARGE, np.ones(2)], lambda array, dtype: None) is None  # no room
    placed = []

    def place(array, dtype):
        placed.append(array)
        return 5, 4096 * len(placed), array.nbytes, False

    first = form.write(1, [LARGE, np.ones(2)], place)
    assert placed[0] is LARGE
    layout = ReplyLayout.of(first, execution_pb2.CallReply.FromString(first))
    assert layout is not None
    second = form.write(1, [LARGE, np.zeros(2)], place)
    assert layout.read(second, 2) is None  # the call has no memory
    memory = Memory(LARGE)
    ((result, small),) = layout.read(second, 2, memory)
    assert result is LARGE
    assert small.tolist() == [0, 0]
    assert memory.asked == [(5, 8192, LARGE.shape, LARGE.dtype, True)]


def test_without_memory_large_results_have_no_form():
    assert ReplyForm.of([LARGE], "w") is None


def in_memory(*shape):
    """A planned request of a tensor of bools of that shape, which it says is in shared memory."""
    written = RequestForm.of(call_request("a::b", (), {}), ()).write([], None, 7)
    request = execution_pb2.CallRequest(operator="a::b")
    tensor = request.args.add().tensor
    tensor.dtype, tensor.shape[:] = "bool", shape
    # As long as a plan writes them.
    place = encode_place((1, 0, math.prod(shape), False))
    region, offset = 1 << 7 * (REGION_BYTES - 1), 1 << 7 * (OFFSET_BYTES - 1)
    tensor.memory.region, tensor.memory.offset, tensor.memory.read_only = region, offset, True
    tensor.memory.length = math.prod(shape)
    assert tensor.memory.ByteSize() == len(place)
    head = COUNT.pack(written[: COUNT.size - 4], COUNT.size)
    return head + request.SerializeToString() + written[-2:]


def test_a_request_of_any_size_is_planned_without_its_memory():
    payload = in_memory(2**36)
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    _, _, leaves = layout.read(payload)
    [blank] = layout.filled_with_blanks(leaves)
    assert (blank.dtype, blank.shape, blank.base.nbytes) == (np.bool_, (2**36,), 1)


@pytest.mark.parametrize("shape", [(-1, -8), (1,) * 70])
def test_a_request_with_a_shape_that_no_array_has_is_not_planned(shape):
    payload = in_memory(*shape)
    assert RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload)) is None
