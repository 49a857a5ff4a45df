"""Requests that are no calls have room for names, and for nothing that takes the daemon long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

import opdispatch_client as oc
from opdispatch.errors import OperatorNotFoundError
from opdispatch_server.daemon.servicers.registry_view import LONGEST_PATTERN
from opdispatch_server.operator_names import LONGEST_NAME
from opdispatch_server.serving.grpc_services import MAX_REQUEST_BYTES
from opdispatch_wire.v1 import (
    execution_pb2_grpc,
    interpreter_pb2,
    interpreter_pb2_grpc,
    registry_pb2_grpc,
    remote_pb2,
)
from opdispatch_wire.v1 import registry_pb2 as pb
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
MANY = """
from opdispatch import Library

lib = Library("many", "DEF")
for i in range(2500):
    lib.define(f"f{i}(Tensor x) -> Tensor")
"""
LONG = "a" * (MAX_REQUEST_BYTES + 1)


@pytest.fixture
def registry(channel: grpc.Channel) -> Any:
    return registry_pb2_grpc.RegistryServiceStub(channel)


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "DescribeOperator": lambda r: r.DescribeOperator(pb.DescribeOperatorRequest(operator=LONG)),
    "UnloadLibrary": lambda r: r.UnloadLibrary(pb.UnloadLibraryRequest(name=LONG)),
    "WaitForDef": lambda r: r.WaitForDef(pb.WaitForDefRequest(operator=LONG)),
    "DrainInterpreter": lambda r: r.DrainInterpreter(pb.DrainInterpreterRequest(name=LONG)),
    "ListOperators": lambda r: r.ListOperators(pb.ListOperatorsRequest(pattern=LONG)),
    "LoadLibrary": lambda r: r.LoadLibrary(pb.LoadLibraryRequest(module=LONG)),
    "requirements": lambda r: r.LoadLibrary(
        pb.LoadLibraryRequest(
            content=b"#" * 1000,
            filename="a.py",
            environment=pb.Environment(requirements=["a"] * MAX_REQUEST_BYTES),
        )
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_long_request_is_refused_as_it_comes(registry: Any, unharmed: oc.Session, name: str):
    with pytest.raises(grpc.RpcError) as caught:
        REQUESTS[name](registry)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"the limit is {MAX_REQUEST_BYTES}" in caught.value.details()


def test_an_upload_may_be_long(unharmed: oc.Session, registry: Any):
    text = (
        "from opdispatch import Library\nlib = Library('long', 'DEF')\nlib.define('f() -> int')\n"
    )
    content = text.encode() + b"#" * (4 * MAX_REQUEST_BYTES)
    upload = pb.LoadLibraryRequest(content=content, filename="upload.py")
    assert registry.LoadLibrary(upload).library.name == "upload"
    unharmed.unload("upload")


def test_a_pattern_is_short(registry: Any, unharmed: oc.Session):
    fits = pb.ListOperatorsRequest(pattern="[" * LONGEST_PATTERN)
    assert not registry.ListOperators(fits).operators
    with pytest.raises(grpc.RpcError) as caught:
        registry.ListOperators(pb.ListOperatorsRequest(pattern="[" * (LONGEST_PATTERN + 1)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "$.pattern" in caught.value.details()


def test_a_long_name_is_that_of_no_operator(unharmed: oc.Session):
    for name in ("image::" + "x" * LONGEST_NAME, "(" * (2 * LONGEST_NAME)):
        with pytest.raises(OperatorNotFoundError, match=r"a name of \d+ characters"):
            unharmed.call(name)


def test_a_list_of_many_operators_comes_whole(unharmed: oc.Session, shared_daemon: RunningDaemon):
    path = shared_daemon.folder / "many.py"
    path.write_text(MANY)
    unharmed.load(path)
    names = [each.name for each in unharmed.operators("many::*")]
    assert names == sorted(f"many::f{i}" for i in range(2500))
    unharmed.unload("many")


def test_a_hello_is_short(channel: grpc.Channel, unharmed: oc.Session):
    hello = interpreter_pb2.Hello(protocol_version=1, name="w", devices=["cpu"] * MAX_REQUEST_BYTES)
    message = interpreter_pb2.InterpreterMessage(hello=hello)
    stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        [*stub.Session(iter([message]), timeout=LONGEST_WAIT)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_values_are_released_in_messages_that_are_no_longer(
    channel: grpc.Channel, unharmed: oc.Session
):
    stub = execution_pb2_grpc.ExecutionServiceStub(channel)
    ids = [bytes(16)] * 10_000  # which is as many as a session of ours tells at a time
    said = [remote_pb2.HoldValuesRequest(release=ids)]
    assert [len(each.session) for each in stub.HoldValues(iter(said), timeout=LONGEST_WAIT)] == [16]
    said.append(remote_pb2.HoldValuesRequest(release=ids * 2))
    with pytest.raises(grpc.RpcError) as caught:
        [*stub.HoldValues(iter(said), timeout=LONGEST_WAIT)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
