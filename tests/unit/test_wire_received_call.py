"""A call of too many parts is refused before protobuf makes an object of each."""

from __future__ import annotations

import numpy as np
import pytest

from opdispatch_wire.calls import call_request, undecoded_arguments
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import MAX_VALUES
from opdispatch_wire.received_call import (
    MAX_ARGUMENTS,
    MAX_VALUES_BYTES,
    ReceivedCall,
    read_call,
)
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.v1 import values_pb2 as pb

ONE = pb.Value(integer=1)


def received(request: execution_pb2.CallRequest) -> ReceivedCall:
    request.id = 7
    return read_call(request.SerializeToString())


def of_list(items: list[pb.Value]) -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest()
    request.args.add().list.items.extend(items)
    return request


def of_kwargs(count: int) -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest()
    for i in range(count):
        request.kwargs[f"argument_{i}"].integer = i
    return request


def of_entries(count: int) -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest()
    for i in range(count):
        entry = request.args.add() if not request.args else request.args[0]
        pair = entry.dict.entries.add()
        pair.key.text, pair.value.integer = f"{i:020}", i
    return request


TOO_MUCH = {
    "positional": lambda: execution_pb2.CallRequest(args=[ONE] * (16 * MAX_ARGUMENTS)),
    "by name": lambda: of_kwargs(MAX_ARGUMENTS + 1),
    "list": lambda: of_list([pb.Value(text="a" * 10)] * (MAX_VALUES + 1)),
    "dict": lambda: of_entries(MAX_VALUES),
    "texts": lambda: of_list([pb.Value(text="a" * 1000)] * (MAX_VALUES_BYTES // 1000)),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_of_a_call_with_too_much_only_the_id_is_read(kind):
    request, arguments, refusal = received(TOO_MUCH[kind]())
    assert refusal is not None
    assert "more than" in refusal.message or "the limit is" in refusal.message
    assert request == execution_pb2.CallRequest(id=7)
    assert not arguments


def test_unknown_fields_are_parts_of_a_call():
    unknown = b"\xf8\x3f\x01" * 100_000
    *_, refusal = read_call(call_request("a::b", [1], {}).SerializeToString() + unknown)
    assert refusal is not None
    assert f"more than {MAX_ARGUMENTS} arguments" in refusal.message


def test_a_call_of_which_no_id_is_found_has_none():
    *_, refusal = read_call(execution_pb2.CallRequest(args=[ONE] * 100_000).SerializeToString())
    assert refusal is not None


def test_call_at_the_limits_is_read():
    for request in (
        execution_pb2.CallRequest(args=[ONE] * (MAX_ARGUMENTS - 1)),
        of_list([pb.Value(text="a" * 10)] * (MAX_VALUES - 10)),
    ):
        got, _, refusal = received(request)
        assert refusal is None
        assert got == request


def test_tensors_and_packed_numbers_of_any_length_are_one_value_each():
    numbers = [1.5] * 1_000_000
    request = call_request("a::b", [numbers, np.zeros(2_000_000)], {}, request_id=7)
    got, arguments, refusal = read_call(request.SerializeToString())
    assert refusal is None
    assert [len(each) for each in arguments] == [8_000_000, 16_000_000]
    assert got.args[0].packed.shape == [1_000_000]


def test_long_texts_do_not_count():
    text = "a" * (MAX_VALUES_BYTES + 1)
    request = call_request("a::b", [text, [text, {"x": text}]], {"by": text}, request_id=7)
    got, arguments, refusal = read_call(request.SerializeToString())
    assert refusal is None
    assert not arguments
    assert got == request


def test_many_tensors_of_a_middling_size_are_passed_on_inline():
    array = np.zeros(1_000)  # 8 kB
    data = call_request("a::b", [[array] * 1_000], {}, request_id=7).SerializeToString()
    got, arguments, refusal = read_call(data)
    assert refusal is None
    assert not arguments
    assert len(got.args[0].list.items) == 1_000


def test_the_bytes_of_a_program_are_not_among_those_of_the_call():
    program = execution_pb2.CallRequest(program=b"a" * (MAX_VALUES_BYTES + 1))
    assert received(program).refusal is None  # it is refused as a program


def test_callee_without_detached_tensors_gets_them_inline():
    data = call_request("a::b", [np.zeros(1_000_000)], {}).SerializeToString()
    request, arguments, refusal = read_call(data, detaches=False)
    assert len(request.args[0].tensor.data) == 8_000_000
    assert not arguments
    assert refusal is None


def test_malformed_call_raises_wire_error():
    with pytest.raises(WireError, match=r"\$ is not a message"):
        read_call(b"\xff" * 100_000)


def test_values_are_counted_also_where_there_are_few_bytes():
    lists = execution_pb2.CallRequest()
    for _ in range(3):
        lists.args.add().list.items.extend([pb.Value(none=pb.NoneValue())] * (MAX_VALUES // 2))
    assert received(lists).refusal is None
    with pytest.raises(WireError, match=f"more than {MAX_VALUES} values"):
        undecoded_arguments(lists)
