"""Interpreters that do not keep to the protocol are refused, and told why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import opdispatch_client as oc
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import interpreter_pb2_grpc
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT


@pytest.fixture
def stub(shared_daemon: RunningDaemon) -> Iterator[interpreter_pb2_grpc.InterpreterServiceStub]:
    """The service of interpreters, for anybody who speaks gRPC."""
    target = shared_daemon.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        yield interpreter_pb2_grpc.InterpreterServiceStub(channel)


def hello(**fields: object) -> pb.InterpreterMessage:
    facts = {"protocol_version": PROTOCOL_VERSION, "pid": 1, "address": "127.0.0.1:1"} | fields
    return pb.InterpreterMessage(hello=pb.Hello(**facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (
            hello(protocol_version=PROTOCOL_VERSION + 1),
            grpc.StatusCode.FAILED_PRECONDITION,
            f"$.hello.protocol_version is {PROTOCOL_VERSION + 1}; this daemon speaks",
        ),
        (hello(name="a b"), grpc.StatusCode.INVALID_ARGUMENT, "$.hello.name is 'a b'; expected"),
        (hello(name="x" * 65), grpc.StatusCode.INVALID_ARGUMENT, "at most 64 letters"),
        (hello(name="\x1b[2J"), grpc.StatusCode.INVALID_ARGUMENT, r"$.hello.name is '\x1b[2J'"),
        (
            hello(name="worker-1"),
            grpc.StatusCode.ALREADY_EXISTS,
            "the daemon keeps the name 'worker-1' for an interpreter of its own",
        ),
        (hello(address="10.0.0.1:1"), grpc.StatusCode.INVALID_ARGUMENT, "beyond this machine"),
        (pb.InterpreterMessage(), grpc.StatusCode.INVALID_ARGUMENT, "$.kind is not hello"),
    ],
)
def test_a_hello_that_will_not_do_is_refused(
    shared_daemon: RunningDaemon,
    stub: interpreter_pb2_grpc.InterpreterServiceStub,
    first: pb.InterpreterMessage,
    code: grpc.StatusCode,
    words: str,
):
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Session(iter([first]), timeout=LONGEST_WAIT))
    assert caught.value.code() is code
    assert words in str(error_from_rpc(caught.value, address=""))
    with shared_daemon.connect() as session:
        names = [interpreter.name for interpreter in session.interpreters()]
        assert names == ["worker-1", "worker-2"]
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())


def test_fetch_of_another_file_than_an_upload_leaves_it_alone(
    stub: interpreter_pb2_grpc.InterpreterServiceStub, tmp_path: Path
):
    secret = tmp_path / "secret"
    secret.write_text("not an upload")
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.FetchLibrary(pb.FetchLibraryRequest(sha256=str(secret)), timeout=LONGEST_WAIT))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert secret.read_text() == "not an upload"


def test_interpreter_may_send_until_it_has_read_the_goodbye(daemon: RunningDaemon):
    target = daemon.address.replace("unix://", "unix:")

    async def talk() -> pb.DaemonMessage:
        async with grpc.aio.insecure_channel(target) as channel:
            session = interpreter_pb2_grpc.InterpreterServiceStub(channel).Session()
            await session.write(hello(name="talker", process_space=""))
            while not (message := await session.read()).HasField("goodbye"):
                pass  # it is not there, at 127.0.0.1:1
            await asyncio.sleep(0.1)
            await session.write(pb.InterpreterMessage(heartbeat=pb.Heartbeat()))
            session.cancel()
            return message

    goodbye = asyncio.run(talk()).goodbye
    assert goodbye.reason.startswith("the daemon cannot call it")


def test_a_worker_of_another_protocol_version_says_so_and_ends(shared_daemon: RunningDaemon):
    code = (
        "import sys, opdispatch_wire.protocol_version as protocol_version\n"
        "protocol_version.PROTOCOL_VERSION += 1\n"
        "from opdispatch_client.cli import main\n"
        f"sys.exit(main(['worker', '--daemon', {shared_daemon.address!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        f"opdispatch: the daemon at {shared_daemon.address} speaks protocol version "
        f"{PROTOCOL_VERSION}, this interpreter version {PROTOCOL_VERSION + 1} "
        "(install the same version of opdispatch on both sides)\n"
    )


def test_an_interpreter_that_sends_no_heartbeats_has_no_lease(
    daemon: RunningDaemon, session: oc.Session
):
    """As one of an earlier release; and one that closes the stream is gone.

    It takes calls at the address of the daemon itself, which no client calls here.
    """
    target = daemon.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)
        stop = threading.Event()

        def messages() -> Iterator[pb.InterpreterMessage]:
            yield hello(name="old", pid=2**31 - 1, address=target)
            stop.wait(LONGEST_WAIT)

        call = stub.Session(messages(), timeout=60)
        welcome = next(call).welcome
        assert welcome.name == "old"
        assert welcome.heartbeat_seconds == 0.5
        assert wait_for(lambda: len(session.interpreters()) == 3)
        old = session.interpreters()[0]
        assert (old.name, old.heartbeat_age) == ("old", None)
        stop.set()
        assert wait_for(lambda: len(session.interpreters()) == 2)
