"""Bad requests other than calls, and peers that speak no language of ours."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlparse

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.v1 import (
    interpreter_pb2,
    interpreter_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
)
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.arange(3.0)
C = grpc.StatusCode


def test_client_of_another_protocol_version_gets_an_error(
    unharmed: oc.Session, channel: grpc.Channel
):
    stub = registry_pb2_grpc.RegistryServiceStub(channel)
    assert stub.GetServerInfo(registry_pb2.GetServerInfoRequest(protocol_version=9)).pid
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetServerInfo(registry_pb2.GetServerInfoRequest(protocol_version=0))
    assert caught.value.code() is C.FAILED_PRECONDITION


def test_requests_about_operators_that_are_not_there(unharmed: oc.Session):
    for method in (unharmed.describe, unharmed.table):
        for name in ("image::nothing", "", "::", "image", "image::invert.x", "\0"):
            with pytest.raises(oc.OperatorNotFoundError):
                method(name)
    assert unharmed.operators("[") == []
    assert unharmed.operators("nothing*") == []
    assert len(unharmed.operators("*")) == len(unharmed.operators()) == 6


def test_a_load_without_a_source_is_refused(unharmed: oc.Session, channel: grpc.Channel):
    stub = registry_pb2_grpc.RegistryServiceStub(channel)
    for module in ("", "not a module", "os; import sys", "a..b", "../x"):
        with pytest.raises(grpc.RpcError) as caught:
            stub.LoadLibrary(registry_pb2.LoadLibraryRequest(name="x", module=module))
        assert caught.value.code() is C.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as caught:
        stub.LoadLibrary(registry_pb2.LoadLibraryRequest(name="x"))
    assert caught.value.code() is C.INVALID_ARGUMENT
    assert "$.source is missing" in caught.value.details()


@pytest.mark.parametrize(
    "module",
    ["nowhere.to.be.found", "json", "numpy", "opdispatch", "opdispatch_server.commands"],
)
def test_a_module_that_is_no_kernel_library_is_refused(unharmed: oc.Session, module: str):
    with pytest.raises(oc.LibraryLoadError):
        unharmed.load(module)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (interpreter_pb2.InterpreterMessage(), C.INVALID_ARGUMENT),
        (interpreter_pb2.InterpreterMessage(done=interpreter_pb2.Done()), C.INVALID_ARGUMENT),
        (
            interpreter_pb2.InterpreterMessage(hello=interpreter_pb2.Hello(protocol_version=2)),
            C.FAILED_PRECONDITION,
        ),
        (
            interpreter_pb2.InterpreterMessage(
                hello=interpreter_pb2.Hello(protocol_version=1, address="nonsense")
            ),
            C.INVALID_ARGUMENT,
        ),
        (
            interpreter_pb2.InterpreterMessage(
                hello=interpreter_pb2.Hello(protocol_version=1, address="example.org:80")
            ),
            C.INVALID_ARGUMENT,
        ),
        (
            interpreter_pb2.InterpreterMessage(
                hello=interpreter_pb2.Hello(
                    protocol_version=1, name="worker-1", address="unix:/nowhere"
                )
            ),
            C.ALREADY_EXISTS,
        ),
    ],
)
def test_an_interpreter_that_does_not_fit_is_refused(
    unharmed: oc.Session, channel: grpc.Channel, message, code: C
):
    stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Session(iter([message]), timeout=LONGEST_WAIT))
    assert caught.value.code() is code


def test_an_interpreter_that_cannot_follow_is_struck_off(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("image", IMAGE))
        target = daemon.address.replace("unix://", "unix:")
        hello = interpreter_pb2.Hello(protocol_version=1, name="fake", address="unix:/nowhere")
        answers = [interpreter_pb2.InterpreterMessage(hello=hello)]
        with grpc.insecure_channel(target) as channel:
            # It says hello, and then nothing any more: its side of the stream is closed.
            stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)
            list(stub.Session(iter(answers), timeout=LONGEST_WAIT))
        assert [interpreter.name for interpreter in session.interpreters()] == ["worker-1"]
        np.testing.assert_array_equal(session.ops.image.invert(X), 1 - X)


def test_bytes_that_are_not_even_http_are_refused(unharmed: oc.Session, loaded: RunningDaemon):
    path = Path(urlparse(loaded.address).path)
    for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(LONGEST_WAIT)
            raw.connect(str(path))
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
