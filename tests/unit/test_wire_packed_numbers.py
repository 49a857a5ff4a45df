"""Long lists of numbers are one tensor on the wire, and the same lists afterwards."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opdispatch_wire.detached_tensors import CALL_REQUEST, attach, detach
from opdispatch_wire.errors import WireError
from opdispatch_wire.packed_numbers import LONGEST_PLAIN
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.v1 import values_pb2 as pb
from opdispatch_wire.values import (
    tensor_to_proto,
    undecoded_from_proto,
    value_from_proto,
    value_to_proto,
)

MANY = LONGEST_PLAIN + 1


@pytest.mark.parametrize("number", [True, -(2**63), 2**63 - 1, -0.0, math.inf, 1 - 2j], ids=repr)
def test_a_long_list_of_numbers_is_packed_and_comes_back_with_its_types(number):
    message = value_to_proto([number] * MANY)
    assert message.WhichOneof("kind") == "packed"
    back = value_from_proto(message)
    assert back == [number] * MANY
    assert {*map(type, back)} == {type(number)}
    assert str(back[0]) == str(number)  # also of which zero it is


def test_numbers_are_packed_inside_containers_and_in_tuples():
    value = {"a": [tuple(range(MANY)), "b"]}
    message = value_to_proto(value)
    assert message.dict.entries[0].value.list.items[0].WhichOneof("kind") == "packed"
    assert value_from_proto(message) == {"a": [list(range(MANY)), "b"]}


@pytest.mark.parametrize(
    "values",
    [[1] * LONGEST_PLAIN, [1] * MANY + [1.0], [1] * MANY + [True], ["a"] * MANY, []],
    ids=["short", "a float", "a bool", "texts", "empty"],
)
def test_short_or_mixed_lists_are_not_packed(values):
    message = value_to_proto(values)
    assert message.WhichOneof("kind") == "list"
    back = value_from_proto(message)
    assert [*map(type, back)] == [*map(type, values)]


def test_a_number_outside_of_the_range_is_named_by_its_place():
    with pytest.raises(WireError, match=r"\$\[3\]: 9223372036854775808 is outside"):
        value_to_proto([0, 0, 0, 2**63] + [0] * MANY)


@pytest.mark.parametrize("number", [True, 1, 1.5, 1j])
def test_kernel_choice_sees_one_number_of_the_type(number):
    message = value_to_proto([number] * 1000)
    (one,) = undecoded_from_proto(message)
    assert type(one) is type(number)
    assert undecoded_from_proto(pb.Value(packed=tensor_to_proto(np.zeros(0)))) == []


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2)), np.array(1.0), np.zeros(3, np.float32), np.zeros(3, np.uint64)],
    ids=["two dimensions", "none", "float32", "uint64"],
)
@pytest.mark.parametrize("decode", [value_from_proto, undecoded_from_proto])
def test_malformed_packed_numbers_raise_wire_error(array, decode):
    message = pb.Value(packed=tensor_to_proto(array))
    with pytest.raises(WireError, match="not a list of numbers"):
        decode(message)


@pytest.mark.parametrize("decode", [value_from_proto, undecoded_from_proto])
def test_numbers_with_keys_or_gradients_are_refused(decode):
    message = pb.Value(packed=tensor_to_proto(np.zeros(3)))
    message.packed.requires_grad = True
    with pytest.raises(WireError, match="not a list of numbers"):
        decode(message)


def test_their_bytes_go_beside_the_message_as_those_of_tensors_do():
    request = execution_pb2.CallRequest()
    request.args.add().CopyFrom(value_to_proto([1.5] * 10_000))
    data = request.SerializeToString()
    small, beside = detach(data, CALL_REQUEST, 1000)
    assert len(small) < 100
    assert [len(each) for each in beside] == [80_000]
    assert b"".join(attach(small, CALL_REQUEST, beside).parts) == data
