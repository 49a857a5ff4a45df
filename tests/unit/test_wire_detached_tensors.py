"""Messages whose large tensors are beside them: the same message comes out of it again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.calls import call_request
from opdispatch_wire.detached_tensors import CALL_REPLY, CALL_REQUEST, attach, detach
from opdispatch_wire.errors import WireError
from opdispatch_wire.protobuf_fields import SHORT
from opdispatch_wire.tensor_bytes import ALIGNMENT
from opdispatch_wire.tensors import tensor_to_proto
from opdispatch_wire.v1 import execution_pb2 as pb

thresholds = st.sampled_from([10, SHORT - 1, SHORT, 200])
sizes = st.integers(0, 40) | st.sampled_from([SHORT - 10, SHORT, SHORT + 1, 300])
arrays = sizes.map(lambda size: np.zeros(size, np.uint8))
values = st.recursive(
    arrays | st.none() | st.integers(-5, 5) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 3), inner),
    max_leaves=8,
)


@given(
    st.lists(values, max_size=4),
    st.dictionaries(st.text(max_size=3), values, max_size=3),
    thresholds,
)
def test_a_call_is_the_same_after_its_tensors_were_beside_it(args, kwargs, threshold):
    whole = call_request("a::b", args, kwargs, request_id=9)
    data = whole.SerializeToString()
    small, tensors = detach(data, CALL_REQUEST, threshold)
    assert all(len(tensor) > threshold for tensor in tensors)
    large = [each for each in leaves([args, list(kwargs.values())]) if each.nbytes > threshold]
    assert len(tensors) == len(large)
    assert len(pb.CallRequest.FromString(small).args) == len(args)
    pieces = attach(small, CALL_REQUEST, tensors)
    assert len(pieces) == sum(map(len, pieces.parts))
    assert pb.CallRequest.FromString(b"".join(pieces.parts)) == whole


def leaves(value):
    """The arrays in lists and dicts."""
    if isinstance(value, np.ndarray):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return (
        [leaf for each in inner for leaf in leaves(each)] if isinstance(value, list | dict) else []
    )


def test_a_large_tensor_is_found_among_many_small_values():
    items = [*range(1000), np.arange(500.0), *map(str, range(1000)), "x" * 500, np.arange(600.0)]
    data = call_request("a::b", [items], {}).SerializeToString()
    small, tensors = detach(data, CALL_REQUEST, 1000)
    assert [len(tensor) for tensor in tensors] == [4000, 4800]
    assert len(small) < len(data) - 8700
    for cut in range(1, 400, 7):
        with pytest.raises(WireError):
            detach(data[: len(data) - 4800 - cut], CALL_REQUEST, 1000)


def test_tensors_of_a_reply_are_found_in_returns_and_mutations():
    reply = pb.CallReply(id=3, interpreter="x" * 100)
    reply.returns.add().tensor.CopyFrom(tensor_to_proto(np.arange(100.0)))
    reply.returns.add().list.items.add().tensor.CopyFrom(tensor_to_proto(np.arange(50.0)))
    reply.mutations.add(value=tensor_to_proto(np.arange(60.0)))
    data = reply.SerializeToString()
    small, tensors = detach(data, CALL_REPLY, 64, first=5)
    assert sorted(map(len, tensors)) == [400, 480, 800]
    parsed = pb.CallReply.FromString(small)
    assert parsed.returns[0].tensor.chunked.number == 5
    assert parsed.mutations[0].value.chunked.length == 480
    small, tensors = detach(data, CALL_REPLY, 64)
    pieces = attach(small, CALL_REPLY, tensors)
    assert pb.CallReply.FromString(b"".join(pieces.parts)) == reply


def test_detach_and_attach_copy_no_tensor_bytes():
    array = np.arange(1000.0)
    data = call_request("a::b", [array], {}).SerializeToString()
    small, (tensor,) = detach(data, CALL_REQUEST, 64)
    assert np.shares_memory(np.frombuffer(tensor, np.uint8), np.frombuffer(data, np.uint8))
    assert any(part is tensor for part in attach(small, CALL_REQUEST, [tensor]).parts)


@given(st.lists(st.integers(70_000, 90_000), min_size=1, max_size=4), st.text(max_size=100))
def test_tensors_begin_where_elements_should_if_that_is_wanted(sizes, words):
    args = [[words, np.ones(size, np.uint8)] for size in sizes]
    whole = call_request("a::b", args, {}, request_id=9)
    small, tensors = detach(whole.SerializeToString(), CALL_REQUEST, 64)
    pieces = attach(small, CALL_REQUEST, tensors, aligned=True)
    data = b"".join(pieces.parts)
    again, found = detach(data, CALL_REQUEST, 64)
    base = np.frombuffer(data, np.uint8).ctypes.data
    places = [np.frombuffer(tensor, np.uint8).ctypes.data - base for tensor in found]
    assert [place % ALIGNMENT for place in places] == [0] * len(sizes)
    assert again == small
    request = pb.CallRequest.FromString(data)
    for argument in request.args:
        argument.list.items[1].tensor.ClearField("padding")
    assert request == whole


def test_a_tensor_must_be_there_with_its_length_once():
    data = call_request("a::b", [np.arange(100.0)] * 2, {}).SerializeToString()
    small, tensors = detach(data, CALL_REQUEST, 64)
    with pytest.raises(WireError, match="tensor 1 in chunks, which was not received"):
        attach(small, CALL_REQUEST, tensors[:1])
    with pytest.raises(WireError, match="refers to 2 tensors in chunks, but 3 were received"):
        attach(small, CALL_REQUEST, [*tensors, memoryview(b"x")])
    with pytest.raises(
        WireError, match="says that tensor 1 in chunks has 800 bytes, but 1 were received"
    ):
        attach(small, CALL_REQUEST, [tensors[0], memoryview(b"x")])
    twice = pb.CallRequest.FromString(small)
    twice.args[1].tensor.chunked.number = 0
    with pytest.raises(WireError, match="tensor 0 in chunks, which was not received"):
        attach(twice.SerializeToString(), CALL_REQUEST, tensors)


def test_a_call_that_refers_to_none_leaves_those_that_came_unused():
    data = call_request("a::b", [1], {}).SerializeToString()
    with pytest.raises(WireError, match="refers to 0 tensors in chunks, but 1 were received"):
        attach(data, CALL_REQUEST, [memoryview(b"x")])


@given(st.binary(max_size=60), st.integers(0, 20) | st.just(SHORT))
def test_any_bytes_are_a_message_or_malformed(data, threshold):
    for paths in (CALL_REQUEST, CALL_REPLY):
        try:
            small, tensors = detach(data, paths, threshold)
        except WireError:
            continue
        assert len(small) <= len(data) + 20 * len(tensors)


@given(st.data())
def test_a_message_that_is_cut_or_changed_is_read_within_bounds(data):
    whole = call_request("a::b", [np.arange(30.0), [np.arange(5.0)]], {"k": 1}).SerializeToString()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole[: data.draw(st.integers(place + 1, len(whole)))])
    changed[place] = data.draw(st.integers(0, 255))
    try:
        _, tensors = detach(bytes(changed), CALL_REQUEST, 16)
    except WireError:
        return
    assert sum(map(len, tensors)) <= len(changed)


def test_endless_nesting_is_malformed():
    inner = b""
    for _ in range(200):
        inner = pb.CallRequest(kwargs={}).SerializeToString() + _field(8, _field(1, inner))
    with pytest.raises(WireError, match="nested more than"):
        detach(_field(3, inner), CALL_REQUEST, 0)


def _field(number, contents):
    size, encoded = len(contents), b""
    while size > 127:
        encoded, size = encoded + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + encoded + bytes([size]) + contents
