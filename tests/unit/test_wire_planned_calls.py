"""Messages written and read by their constants are those that protobuf writes and reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import Tensor
from opdispatch_wire.calls import call_request, result_of_reply, undecoded_arguments
from opdispatch_wire.dtypes import WIRE_DTYPES
from opdispatch_wire.plain_calls import plain_arguments, plain_reply
from opdispatch_wire.planned_replies import ReplyForm, ReplyLayout
from opdispatch_wire.planned_requests import (
    COUNT,
    MOST_CONSTANT_BYTES,
    MOST_LEAVES,
    RequestForm,
    RequestLayout,
    constant_bytes_of,
)
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import fill_value, value_from_proto
from opdispatch_wire.variable_parts import (
    MOST_ITEMS,
    decode_integer,
    encode_integer,
    filled,
    take_value,
)

DTYPES = [np.dtype(t) for t in (np.float32, np.int8, np.uint64, np.complex128, np.float16)]
NUMBERS = st.sampled_from([1, 127, 128, 16_383, 16_384, 2**32, 2**63 - 1])
TIMEOUTS = st.none() | st.floats(0, 1e9)
EPOCH = 7


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Small plain arrays, none of them empty."""
    shapes = st.lists(st.integers(1, 4), max_size=3)
    return st.builds(
        lambda shape, dtype: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype),
        shapes,
        st.sampled_from(DTYPES),
    )


def planned(
    args: list[np.ndarray[Any, Any]], timeout: float | None, number: int
) -> tuple[execution_pb2.CallRequest, bytes]:
    """A request as the general way makes it, and the same as the plan of it writes it."""
    request = call_request("test::add", args, {})
    request.route_epoch = EPOCH
    request.kernel.load_id = 3
    form = RequestForm.of(request, args)
    assert form is not None
    request.id = number
    if timeout is not None:
        request.timeout = timeout
    payload = form.write(args, timeout, number)
    assert len(payload) <= form.size
    return request, payload


@given(st.lists(arrays(), max_size=3), TIMEOUTS, NUMBERS)
def test_a_planned_request_is_the_request(
    args: list[np.ndarray[Any, Any]], timeout: float | None, number: int
):
    request, payload = planned(args, timeout, number)
    read = execution_pb2.CallRequest.FromString(payload)
    assert read.constant_bytes
    request.constant_bytes = read.constant_bytes
    assert read == request


@given(st.lists(arrays(), max_size=3), TIMEOUTS, NUMBERS, TIMEOUTS, NUMBERS)
def test_a_layout_reads_what_protobuf_reads(
    args: list[np.ndarray[Any, Any]],
    timeout: float | None,
    number: int,
    next_timeout: float | None,
    next_number: int,
):
    _, first = planned(args, timeout, number)
    layout = RequestLayout.of(first, execution_pb2.CallRequest.FromString(first))
    assert layout is not None
    others = [np.asarray(np.flip(array) + np.ones_like(array)) for array in args]
    request, payload = planned(others, next_timeout, next_number)
    assert constant_bytes_of(payload) == layout.constant == constant_bytes_of(first)
    received = layout.read(payload)
    assert received is not None
    assert received[:2] == (next_number, next_timeout)
    for mine, theirs in zip(received[2], plain_arguments(request) or [], strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tolist() == theirs.tolist()
        assert not mine.flags.writeable
        assert mine.flags.aligned


class Remote:
    """A remote tensor of which only the id differs from others'."""

    def __init__(self, number: bytes) -> None:
        self.number = number

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        message.remote.id, message.remote.session = self.number, b"s" * 16
        message.remote.shape.append(3)

    def __opdispatch_take_value__(self, key: list[Any], leaves: list[Any]) -> bool:
        key.append(Remote)
        leaves.append(self.number)
        return True


def test_ids_of_remote_tensors_are_leaves():
    array = np.ones(2)
    args = [[Remote(b"a" * 16), Remote(b"b" * 16)], array, Remote(b"c" * 16)]
    request = call_request("test::add", args, {"x": Remote(b"d" * 16)})
    form = RequestForm.of(request, args, {"x": Remote(b"d" * 16)})
    assert form is not None
    key: list[Any] = []
    leaves: list[Any] = []
    for value in (*args, Remote(b"d" * 16)):
        assert take_value(value, key, leaves)
    payload = form.write(leaves, None, 7)
    read = execution_pb2.CallRequest.FromString(payload)
    request.id, request.constant_bytes = 7, read.constant_bytes
    assert read == request
    layout = RequestLayout.of(payload, read)
    assert layout is not None
    assert layout.remote == [(place, b"s" * 16) for place in (0, 1, 3, 4)]
    others = [b"1" * 16, b"2" * 16, array, b"3" * 16, b"4" * 16]
    received = layout.read(form.write(others, 1.5, 8))
    assert received is not None
    assert received[:2] == (8, 1.5)
    assert [received[2][place] for place in (0, 1, 3, 4)] == [others[i] for i in (0, 1, 3, 4)]


@given(st.lists(arrays(), min_size=1, max_size=2), TIMEOUTS, NUMBERS, st.integers(0, 2**32))
def test_a_layout_reads_nothing_into_changed_bytes(
    args: list[np.ndarray[Any, Any]], timeout: float | None, number: int, seed: int
):
    _, payload = planned(args, timeout, number)
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    assert layout is not None
    rng = random.Random(seed)
    changed = bytearray(payload)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                del changed[place:]
            case _:
                changed[place:place] = bytes([rng.randrange(256)])
        if not changed:
            return
    data = bytes(changed)
    if constant_bytes_of(data) != layout.constant or (received := layout.read(data)) is None:
        return
    request = execution_pb2.CallRequest.FromString(data)
    theirs = plain_arguments(request)
    assert theirs is not None
    assert received[0] == request.id
    assert np.array_equal(
        np.array(received[1], float),
        np.array(request.timeout if request.HasField("timeout") else None, float),
        equal_nan=True,
    )
    assert [each.tobytes() for each in received[2]] == [each.tobytes() for each in theirs]


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request.kwargs["x"].complex.SetInParent(),
        lambda request: request.ClearField("constant_bytes"),
        lambda request: request.args.pop(),
        lambda request: setattr(request, "constant_bytes", request.constant_bytes + 1),
    ],
)
def test_a_request_in_protobufs_order_has_no_layout(change: Any):
    request, payload = planned([np.ones(4)], 1.0, 5)
    request = execution_pb2.CallRequest.FromString(payload)
    change(request)
    data = request.SerializeToString()  # the id comes first
    assert RequestLayout.of(data, request) is None


def as_planned(request: execution_pb2.CallRequest) -> bytes:
    """The bytes of any request in the order of a planned one: its id is the last."""
    request.ClearField("id")
    body = request.SerializeToString()
    planned_bytes = planned([], None, 7)[1]
    tag = planned_bytes[: COUNT.size - 4]
    return COUNT.pack(tag, COUNT.size) + body + planned_bytes[-2:]


def listed(count: int) -> execution_pb2.CallRequest:
    return call_request("a::b", ([None] * count,), {})


@pytest.mark.parametrize(
    ("fits", "request_"),
    [
        (True, listed(MOST_ITEMS)),
        (False, listed(MOST_ITEMS + 1)),
        (True, call_request("a::b", [1.0] * MOST_LEAVES, {})),
        (False, call_request("a::b", [1.0] * (MOST_LEAVES + 1), {})),
        (True, call_request("a::b", (), {"x" * (MOST_CONSTANT_BYTES - 60): None})),
        (False, call_request("a::b", (), {"x" * MOST_CONSTANT_BYTES: None})),
    ],
)
def test_a_layout_of_a_request_has_a_bound(fits: bool, request_: execution_pb2.CallRequest):
    payload = as_planned(request_)
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    assert (layout is not None) == fits


def test_hostile_bytes_have_no_layout():
    rng = random.Random(0)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(40))
        try:
            request = execution_pb2.CallRequest.FromString(data)
        except DecodeError:
            continue
        if len(request.args) == 0 and (layout := RequestLayout.of(data, request)) is not None:
            received = layout.read(data)
            assert received is None or received[0] == request.id


def values() -> st.SearchStrategy[Any]:
    """Values of the kinds that calls are planned with, and lists of them."""
    plain = st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.booleans(),
        st.text(max_size=5),
        st.none(),
        st.sampled_from([np.dtype("float32"), np.float64(2.5), np.bool_(True)]),
        arrays(),
        arrays().map(Tensor),
        st.just(np.zeros((0, 3), np.int16)),
        st.sampled_from([np.array([True, False]), np.arange(3, dtype=">i4"), np.array(2.0)]),
    )
    return st.one_of(plain, st.lists(plain, max_size=3), st.lists(st.lists(plain, max_size=2)))


def shown(value: Any) -> Any:
    """The type and the contents of a value as they come from the other side."""
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, Tensor):
        return Tensor, value.key_bits, shown(value.array)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return str(array.dtype.newbyteorder("<")), array.shape, str(array.tolist())
    return type(value), str(value)


@given(st.lists(values(), max_size=3), st.dictionaries(st.sampled_from(["a", "ä"]), values()))
def test_a_layout_reads_what_a_form_has_written(args: list[Any], kwargs: dict[str, Any]):
    key: list[Any] = []
    leaves: list[Any] = []
    if not all(take_value(each, key, leaves) for each in (*args, *kwargs.values())):
        return
    request = call_request("test::any", args, kwargs)
    form = RequestForm.of(request, args, kwargs)
    assert form is not None
    payload = form.write(leaves, 2.0, 300)
    assert len(payload) <= form.size
    read = execution_pb2.CallRequest.FromString(payload)
    assert shown(list(undecoded_arguments(read)[0])) == shown(undecoded_arguments(request)[0])
    layout = RequestLayout.of(payload, read)
    assert layout is not None
    received = layout.read(payload)
    assert received is not None
    assert received[:2] == (300, 2.0)
    assert shown(filled(layout.args, received[2])) == shown(args)
    assert sorted(layout.kwargs) == sorted(kwargs)
    for name, template in layout.kwargs.items():
        assert shown(filled(template, received[2])) == shown(kwargs[name])


@given(
    st.lists(values(), max_size=3),
    st.dictionaries(st.sampled_from(["a", "b"]), values(), max_size=1),
    st.integers(0, 2**32),
)
def test_a_layout_of_any_values_reads_nothing_into_changed_bytes(
    args: list[Any], kwargs: dict[str, Any], seed: int
):
    key: list[Any] = []
    leaves: list[Any] = []
    if not all(take_value(each, key, leaves) for each in (*args, *kwargs.values())):
        return
    form = RequestForm.of(call_request("test::any", args, kwargs), args, kwargs)
    assert form is not None
    payload = form.write(leaves, 2.0, 300)
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    assert layout is not None
    rng = random.Random(seed)
    for _ in range(20):
        changed = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(layout.constant), len(changed))] = rng.randrange(256)
        data = bytes(changed)
        if (received := layout.read(data)) is None:
            continue
        request = execution_pb2.CallRequest.FromString(data)
        theirs = [value_from_proto(each) for each in request.args]
        assert shown(filled(layout.args, received[2])) == shown(theirs)
        for name, template in layout.kwargs.items():
            mine = shown(filled(template, received[2]))
            assert mine == shown(value_from_proto(request.kwargs[name]))


@given(st.lists(values(), max_size=3), NUMBERS)
def test_a_layout_of_replies_reads_what_a_form_has_written(returns: list[Any], number: int):
    form = ReplyForm.of(returns, "worker-1")
    if form is None:
        return
    payload = form.write(number, returns)
    assert payload is not None
    reply = execution_pb2.CallReply.FromString(payload)
    general = execution_pb2.CallReply(id=number, interpreter="worker-1")
    for value in returns:
        fill_value(general.returns.add(), value, at="$")
    assert reply == general
    for data in (payload, general.SerializeToString()):  # both orders of fields
        layout = ReplyLayout.of(data, reply)
        assert layout is not None
        place = len(execution_pb2.CallReply(id=number).SerializeToString())
        read = layout.read(data, place)
        assert read is not None
        assert shown(read[0]) == shown(result_of_reply(general, (), {}))


@given(arrays(), NUMBERS, NUMBERS)
def test_a_reply_written_by_its_form_is_read_by_protobuf_and_by_its_layout(
    array: np.ndarray[Any, Any], number: int, next_number: int
):
    written = ReplyForm.of([array], "worker-1")
    assert written is not None
    payload = written.write(number, [array])
    assert payload is not None
    general = plain_reply(number, array, "worker-1")
    reply = execution_pb2.CallReply.FromString(payload)
    assert reply == general
    for first in (payload, general.SerializeToString()):  # both orders of fields
        layout = ReplyLayout.of(first, reply)
        assert layout is not None
        other = np.asarray(np.flip(array) + np.ones_like(array))
        place = len(execution_pb2.CallReply(id=next_number).SerializeToString())
        following = plain_reply(next_number, other, "worker-1")
        assert following is not None
        data = following.SerializeToString()
        if first is payload:
            data = written.write(next_number, [other]) or b""
        read = layout.read(data, place)
        assert read is not None
        assert read[0].dtype == array.dtype
        assert read[0].tolist() == other.tolist()
        assert read[0].flags.writeable
        assert read[0].flags.aligned
        assert read[0].flags.owndata


@pytest.mark.parametrize(
    "result",
    [np.array(["text"]), 2**70, 1j, {}, [0] * 17, Tensor(np.ones(2), requires_grad=True), "\ud800"],
    ids=["texts", "large", "complex", "dict", "long", "gradient", "surrogate"],
)
def test_results_that_are_not_plain_have_no_form(result: Any):
    assert ReplyForm.of([result], "worker-1") is None


def test_a_form_writes_no_other_result():
    form = ReplyForm.of([np.ones(4, np.float32)], "worker-1")
    assert form is not None
    for other in (np.ones(4, np.float64), np.ones((2, 2), np.float32), 1, None):
        assert form.write(1, [other]) is None
    assert form.write(1, [np.ones(4, np.float32), 1]) is None


@pytest.mark.parametrize(
    "field",
    ["has_waited", "error", "mutations", "trace", "route"],
)
def test_a_reply_that_says_more_has_no_layout(field: str):
    reply = plain_reply(3, np.ones(4), "worker-1")
    assert reply is not None
    match field:
        case "has_waited":
            reply.has_waited = True
        case "error":
            reply.error.code = 2
        case "mutations" | "trace":
            getattr(reply, field).add()
        case _:
            reply.route.epoch = 1
    assert ReplyLayout.of(reply.SerializeToString(), reply) is None


def test_every_dtype_of_the_wire_is_planned():
    for dtype in WIRE_DTYPES.values():
        assert ReplyForm.of([np.ones(3, dtype)], "w") is not None


def test_a_byte_that_is_no_bool_is_left_to_the_general_way():
    array = np.array([True, False])
    form = ReplyForm.of([array], "w")
    assert form is not None
    payload = form.write(1, [array])
    assert payload is not None
    layout = ReplyLayout.of(payload, execution_pb2.CallReply.FromString(payload))
    assert layout is not None
    assert layout.read(payload, 2) is not None
    assert layout.read(payload.replace(b"\1\0", b"\2\0"), 2) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_of_one_length_are_read_by_protobuf(value: int):
    data = encode_integer(value)
    assert decode_integer(data) == value
    assert execution_pb2.CallReply.FromString(b"\x08" + data).id == value % 2**64


@pytest.mark.parametrize("data", [b"\x01" * 10, b"\x81" * 9 + b"\x02", b"\x80" * 10])
def test_bytes_that_are_no_such_integer_are_refused(data: bytes):
    with pytest.raises(ValueError, match="not an integer"):
        decode_integer(data)
