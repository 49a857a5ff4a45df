"""Remote values on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdispatch.schema.parser import parse_schema
from opdispatch_wire.calls import call_request, decode_arguments
from opdispatch_wire.errors import WireError
from opdispatch_wire.remote_values import RemoteFacts, facts_from_proto, needs_daemon, value_id
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
    facts = RemoteFacts.of(array)
    facts.write_to(message, at="$")
    assert facts_from_proto(message, at="$") == facts
    assert facts.nbytes == array.nbytes


def test_facts_that_cannot_be_are_refused():
    message = values_pb2.RemoteTensor(dtype="float32", shape=[-1])
    with pytest.raises(WireError, match=r"\$\.shape is \[-1\]"):
        facts_from_proto(message, at="$")
    with pytest.raises(WireError, match=r"\$\.dtype"):
        facts_from_proto(values_pb2.RemoteTensor(dtype="object"), at="$")


def test_who_expects_no_remote_tensor_refuses_it():
    for decode in (value_from_proto, undecoded_from_proto):
        value = values_pb2.Value()
        value.list.items.add().remote.id = b"1"
        with pytest.raises(WireError, match=r"\$\[0\] is a remote tensor, which cannot be sent"):
            decode(value)
        value = values_pb2.Value()
        value.reference.step = 1
        with pytest.raises(WireError, match="a reference stands only in a program's steps"):
            decode(value)


def test_only_the_daemon_can_route_what_is_remote():
    assert not needs_daemon(call_request("a::b", [np.zeros(2), [1, [2.0]]], {"x": "y"}))
    assert needs_daemon(execution_pb2.CallRequest(program=b"1"))
    assert needs_daemon(execution_pb2.CallRequest(adopt=True))
    keeping = execution_pb2.CallRequest()
    keeping.keep.SetInParent()
    assert needs_daemon(keeping)
    for path in ("args", "kwargs", "list"):
        request = call_request("a::b", [[[1]]], {"x": 3})
        if path == "args":
            request.args.add().remote.id = b"1"
        elif path == "kwargs":
            request.kwargs["y"].remote.id = b"1"
        else:
            request.args[0].list.items[0].list.items.add().remote.id = b"1"
        assert needs_daemon(request), path


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
