"""Messages written and read by their constants are those that protobuf writes and reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.calls import call_request
from opdispatch_wire.dtypes import WIRE_DTYPES
from opdispatch_wire.plain_calls import plain_arguments, plain_reply
from opdispatch_wire.planned_calls import (
    ReplyForm,
    RequestLayout,
    constant_bytes_of,
    request_pieces,
    write_request,
)
from opdispatch_wire.v1 import execution_pb2

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
    pieces = request_pieces(request, args)
    assert pieces is not None
    request.id = number
    if timeout is not None:
        request.timeout = timeout
    return request, write_request(pieces, args, timeout, number)


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
        lambda request: request.kwargs["x"].MergeFrom(request.args[0]),
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


@given(arrays(), NUMBERS, NUMBERS)
def test_a_reply_written_by_its_form_is_read_by_protobuf_and_by_its_form(
    array: np.ndarray[Any, Any], number: int, next_number: int
):
    written = ReplyForm.to_write(array, "worker-1")
    assert written is not None
    payload = written.write(number, array)
    assert payload is not None
    general = plain_reply(number, array, "worker-1")
    reply = execution_pb2.CallReply.FromString(payload)
    assert reply == general
    for first in (payload, general.SerializeToString()):  # both orders of fields
        form = ReplyForm.of(first, reply)
        assert form is not None
        other = np.asarray(np.flip(array) + np.ones_like(array))
        place = len(execution_pb2.CallReply(id=next_number).SerializeToString())
        following = plain_reply(next_number, other, "worker-1")
        assert following is not None
        data = following.SerializeToString()
        if first is payload:
            data = written.write(next_number, other) or b""
        read = form.read(data, place)
        assert read is not None
        assert read.dtype == array.dtype
        assert read.tolist() == other.tolist()
        assert read.flags.writeable
        assert read.flags.aligned


@pytest.mark.parametrize(
    "array",
    [np.array([True]), np.zeros((0, 3)), np.ones(2, ">i4"), np.array(["text"])],
    ids=["bool", "empty", "big-endian", "text"],
)
def test_results_that_are_not_plain_have_no_form(array: np.ndarray[Any, Any]):
    assert ReplyForm.to_write(array, "worker-1") is None


def test_a_form_writes_no_other_array():
    form = ReplyForm.to_write(np.ones(4, np.float32), "worker-1")
    assert form is not None
    assert form.write(1, np.ones(4, np.float64)) is None
    assert form.write(1, np.ones((2, 2), np.float32)) is None


@pytest.mark.parametrize(
    "field",
    ["has_waited", "error", "mutations", "trace", "route"],
)
def test_a_reply_that_says_more_has_no_form(field: str):
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
    assert ReplyForm.of(reply.SerializeToString(), reply) is None


def test_every_dtype_of_the_wire_but_bool_is_planned():
    for name, dtype in WIRE_DTYPES.items():
        array = np.ones(3, dtype)
        assert (ReplyForm.to_write(array, "w") is None) == (name == "bool")


def test_constants_stand_where_they_are_among_the_arguments():
    x, y = np.ones(4, np.float32), np.ones((2, 2))
    for args in (("text", x, 3, y, None), (x, -0.0, True), (7,), (x, y, "end")):
        request = call_request("test::mixed", args, {})
        pieces = request_pieces(request, args)
        assert pieces is not None
        arrays = [value for value in args if isinstance(value, np.ndarray)]
        payload = write_request(pieces, arrays, 2.0, 300)
        read = execution_pb2.CallRequest.FromString(payload)
        assert read.args == request.args
        layout = RequestLayout.of(payload, read)
        assert layout is not None
        received = layout.read(payload)
        assert received is not None
        assert received[:2] == (300, 2.0)
        assert [each.tobytes() for each in received[2]] == [each.tobytes() for each in arrays]
