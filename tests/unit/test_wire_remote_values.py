"""Remote values on the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opdispatch.schema.parser import parse_schema
from opdispatch_wire.calls import call_request, decode_arguments
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.remote_values import (
    RemoteFacts,
    are_values_elsewhere,
    facts_from_proto,
    id_of,
    needs_daemon,
    place_of,
    remote_arguments,
    store_key,
    value_id,
    values_elsewhere_error,
)
from opdispatch_wire.status import error_from_status, status_from_error
from opdispatch_wire.tensors import plain_key_bits
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import (
    undecoded_from_proto,
    value_from_proto,
)


def test_ids_of_one_call_differ_and_have_its_prefix():
    ids = {value_id(b"p" * 12, place) for place in (0, 1, 255, 256, 2**32 - 1)}
    assert len(ids) == 5
    assert all(len(number) == 16 and number.startswith(b"p" * 12) for number in ids)


@pytest.mark.parametrize("array", [np.zeros((2, 0, 3), np.int8), np.array(1j), np.ones(3, "f2")])
def test_facts_survive_the_way(array: np.ndarray):
    message = values_pb2.RemoteTensor()
    facts = RemoteFacts.of(array, at="$")
    facts.write_to(message)
    assert facts_from_proto(message, at="$") == facts
    assert facts.nbytes == array.nbytes


def test_facts_that_cannot_be_are_refused():
    message = values_pb2.RemoteTensor(dtype="float32", shape=[-1])
    with pytest.raises(WireError, match=r"\$\.shape is \[-1\]"):
        facts_from_proto(message, at="$")
    with pytest.raises(WireError, match=r"\$\.dtype"):
        facts_from_proto(values_pb2.RemoteTensor(dtype="object"), at="$")


def test_remote_tensor_is_refused_where_none_is_expected():
    for decode in (value_from_proto, undecoded_from_proto):
        value = values_pb2.Value()
        value.list.items.add().remote.id = b"1"
        with pytest.raises(
            WireError, match=r"\$\[0\] is a remote tensor, which is not allowed here"
        ):
            decode(value)
        value = values_pb2.Value()
        value.reference.step = 1
        with pytest.raises(WireError, match="expected one only in a program's steps"):
            decode(value)


def test_only_the_daemon_can_route_programs_and_what_is_kept_somewhere():
    assert not needs_daemon(call_request("a::b", [np.zeros(2), [1, [2.0]]], {"x": "y"}))
    assert needs_daemon(execution_pb2.CallRequest(program=b"1"))
    assert needs_daemon(execution_pb2.CallRequest(adopt=True))
    keeping = execution_pb2.CallRequest()
    keeping.keep.session = b"s"
    assert not needs_daemon(keeping)
    for place in ("on", "device"):
        somewhere = execution_pb2.CallRequest()
        setattr(somewhere.keep, place, "there")
        assert needs_daemon(somewhere)


@pytest.mark.parametrize("path", ["args", "kwargs", "list"])
def test_remote_arguments_are_found_wherever_they_are(path: str):
    request = call_request("a::b", [np.zeros(2), [[1]]], {"x": 3})
    assert remote_arguments(request) == []
    if path == "args":
        request.args.add().remote.id = b"1"
    elif path == "kwargs":
        request.kwargs["y"].remote.id = b"1"
    else:
        request.args[1].list.items[0].list.items.add().remote.id = b"1"
    assert [each.id for each in remote_arguments(request)] == [b"1"]


def test_a_key_has_the_id_and_the_place():
    key = store_key(value_id(bytes(12), 3), 7)
    assert (id_of(key), place_of(key)) == (value_id(bytes(12), 3), 7)


def test_values_elsewhere_differ_from_other_refusals():
    assert are_values_elsewhere(error_from_status(status_from_error(values_elsewhere_error())))
    assert not are_values_elsewhere(RefusedError("the daemon is stopping"))


@pytest.mark.parametrize(
    ("changed", "is_plain"),
    [
        ({}, True),
        ({"device": "cuda:1", "key_bits": plain_key_bits("cuda")}, True),
        ({"device": "unheard"}, False),
        ({"key_bits": 1}, False),
        ({"requires_grad": True}, False),
        ({"layout": "sparse_coo"}, False),
    ],
)
def test_facts_say_whether_a_tensor_is_like_any_array(changed: dict[str, Any], is_plain: bool):
    plain = RemoteFacts("float64", (2,), "cpu", plain_key_bits("cpu"), False)
    assert replace(plain, **changed).is_plain == is_plain


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ("f(Tensor(a!) x, Tensor(b!)[] xs, Tensor y, *, Tensor(c!) out) -> ()", "x xs0 xs1 out"),
        ("f(Tensor x, Tensor[] xs, Tensor(a!) y, *, Tensor out) -> ()", "y"),
        ("f(Tensor x, Tensor[] xs, Tensor y, *, Tensor out) -> ()", ""),
    ],
)
def test_decoder_gets_written_arguments_first(schema: str, written: str):
    places = {
        "x": "$.args[0]",
        "xs0": "$.args[1][0]",
        "xs1": "$.args[1][2]",
        "y": "$.args[2]",
        "out": "$.kwargs['out']",
    }
    request = execution_pb2.CallRequest()
    x, xs, y = (request.args.add() for _ in range(3))
    x.remote.id = b"x"
    xs.list.items.add().remote.id = b"xs0"
    xs.list.items.add().none.SetInParent()
    xs.list.items.add().remote.id = b"xs1"
    y.remote.id = b"y"
    request.kwargs["out"].remote.id = b"out"
    told: list[Any] = []

    def remote(message: values_pb2.RemoteTensor, at: str, writable: bool) -> Any:
        told.append((message.id.decode(), writable))
        return np.zeros(1)

    def begin_writes(found: Any) -> None:
        assert told == []
        told.append([(message.id.decode(), at) for message, at in found])

    decode_arguments(request, parse_schema(schema), None, remote, begin_writes)
    names = written.split()
    expected = [[(name, places[name]) for name in names]] if names else []
    assert told == [*expected, *((name, name in names) for name in places)]
