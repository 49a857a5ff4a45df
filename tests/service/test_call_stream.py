"""The gRPC stream of calls, spoken by a client that checks nothing."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.calls import call_request
from opdispatch_wire.lanes.stream_tensors import CALL_STREAM
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_KEY
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, registry_pb2
from tests.service.conftest import WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.arange(3.0)
C = grpc.StatusCode


class RawStream:
    """A stream that says whatever a test wants it to say."""

    def __init__(self, channel: grpc.Channel, **metadata: str) -> None:
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = channel.stream_stream(CALL_STREAM)
        pairs = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
        self.replies: Any = method(iter(self._said.get, None), metadata=pairs, timeout=LONGEST_WAIT)

    def say(self, message: bytes) -> None:
        self._said.put(message)

    def call(self, number: int, operator: str, *args: object) -> None:
        self.say(call_request(operator, args, {}, request_id=number).SerializeToString())

    def hear(self) -> execution_pb2.CallReply:
        return execution_pb2.CallReply.FromString(next(self.replies))

    def end_requests(self) -> None:
        self._said.put(None)

    def error(self) -> grpc.Call:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.replies:
                pass
        assert isinstance(caught.value, grpc.Call)
        return caught.value

    def close(self) -> None:
        self.replies.cancel()
        self._said.put(None)


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[RawStream]:
    stream = RawStream(channel)
    yield stream
    stream.close()


def test_an_error_is_that_calls_alone(unharmed: oc.Session, stream: RawStream):
    stream.call(1, "no::such", X)
    stream.call(0, "image::pipeline", X)
    stream.call(2**64 - 1, "image::boom", X)
    replies = {reply.id: reply for reply in (stream.hear() for _ in range(3))}
    assert isinstance(error_from_status(replies[1].error), oc.OperatorNotFoundError)
    assert isinstance(error_from_status(replies[2**64 - 1].error), oc.KernelError)
    assert not replies[0].HasField("error")


def test_two_calls_of_one_id_end_the_stream(
    daemon: RunningDaemon, write_library: WriteLibrary, tmp_path: Path
):
    doors = Doors(tmp_path)
    with daemon.connect() as session, grpc.insecure_channel(f"unix:{tmp_path}/daemon.sock") as ch:
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        stream = RawStream(ch)
        for label in "ab":
            stream.call(7, "doors::enter", X, doors.folder, label)
        error = stream.error()
        assert error.code() is C.INVALID_ARGUMENT
        assert "$.id is 7" in (error.details() or "")
        # What the stream has begun is not awaited; it ends all the same.
        doors.let_out(2)
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)
        assert session.check_invariants() == []
        stream.close()
    doors.close()


@pytest.mark.parametrize("garbage", [b"\xff" * 50, b"\x0a", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_ends_the_stream(unharmed: oc.Session, stream: RawStream, garbage: bytes):
    stream.call(1, "image::pipeline", X)
    assert stream.hear().id == 1
    stream.say(garbage)
    error = stream.error()
    assert error.code() is C.INVALID_ARGUMENT
    assert "$ is not the message" in (error.details() or "")


def test_cancels_of_any_number_are_accepted(unharmed: oc.Session, stream: RawStream):
    for number in (0, 5, 2**64 - 1):
        stream.say(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())
    for number in range(100):  # most of them before they have begun
        stream.call(number, "image::pipeline", X)
        stream.say(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())
    for number in range(2000):  # as many as would stop the reading if they were still counted
        stream.call(number, "image::pipeline", X)
        stream.say(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())
    stream.call(5000, "image::pipeline", X)
    assert any(stream.hear().id == 5000 for _ in range(2200))


def test_the_end_of_requests_is_not_that_of_replies(unharmed: oc.Session, stream: RawStream):
    for number in range(200):
        stream.call(number, "image::pipeline", X)
    stream.end_requests()
    replies = [execution_pb2.CallReply.FromString(data) for data in stream.replies]
    assert sorted(reply.id for reply in replies) == list(range(200))
    assert stream.replies.code() is C.OK


def test_a_reply_that_is_longer_than_the_client_takes_is_an_error_of_that_call(
    unharmed: oc.Session, channel: grpc.Channel
):
    key = MAX_MESSAGE_BYTES_KEY.replace("-", "_")
    stream = RawStream(channel, **{key: "2000"})
    stream.call(1, "image::pipeline", np.zeros(1000))
    stream.call(2, "image::pipeline", X)
    replies = {reply.id: reply for reply in (stream.hear() for _ in range(2))}
    assert isinstance(error_from_status(replies[1].error), oc.MessageTooLargeError)
    assert not replies[2].HasField("error")
    stream.close()
    for nonsense in ("", "-1", "0", "9" * 4000):
        stream = RawStream(channel, **{key: nonsense})
        stream.call(1, "image::pipeline", X)
        assert stream.hear().id == 1
        stream.close()


def test_a_session_with_a_limit_gets_that_error_too(unharmed: oc.Session, loaded: RunningDaemon):
    with loaded.connect(lane="stream", max_message_bytes=4000) as session:
        with pytest.raises(oc.MessageTooLargeError, match="the call of image::pipeline"):
            session.call("image::pipeline", X, "x" * 4000)
        # Tensors go in chunks.
        x = np.arange(1000.0)
        np.testing.assert_array_equal(session.ops.image.pipeline(x), 1 - x * 3)
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)


class Counted:
    """Requests, counted as gRPC takes them."""

    def __init__(self, message: bytes, count: int) -> None:
        self.taken = 0
        self._message = message
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        for number in range(self._count):
            self.taken += 1
            # A later field of the same number counts.
            yield self._message + execution_pb2.CallRequest(id=number + 1).SerializeToString()


def test_a_client_that_stops_reading_is_not_read_any_more(
    unharmed: oc.Session, channel: grpc.Channel
):
    big = call_request("image::pipeline", (np.zeros(100_000),), {}).SerializeToString()
    requests = Counted(big, 2000)
    call: Any = channel.stream_stream(CALL_STREAM)(iter(requests))
    next(call)
    before = -1

    def is_stuck() -> bool:
        nonlocal before
        np.testing.assert_array_equal(unharmed.ops.image.pipeline(X), 1 - X * 3)
        before, was = requests.taken, before
        return was == before

    assert wait_for(is_stuck)
    assert requests.taken < 1500
    call.cancel()


@pytest.fixture
def old_daemon(tmp_path: Path) -> Iterator[str]:
    """The address of one that knows no streams; all that it is asked here is who it is."""

    def introduce(request: bytes, context: grpc.ServicerContext) -> bytes:
        info = registry_pb2.GetServerInfoReply(protocol_version=1, server_version="0")
        return info.SerializeToString()

    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads)
        methods = {"GetServerInfo": grpc.unary_unary_rpc_method_handler(introduce)}
        service = "opdispatch.v1.RegistryService"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{tmp_path}/old.sock")
        server.start()
        yield f"unix://{tmp_path}/old.sock"
        server.stop(0).wait(LONGEST_WAIT)


def test_a_daemon_that_knows_no_streams_is_called_without(old_daemon: str):
    with oc.connect(old_daemon) as session:
        assert session.lane == "grpc"
    with pytest.raises(oc.DaemonUnavailableError, match="there is no stream of calls"):
        oc.connect(old_daemon, lane="stream")


async def test_the_asyncio_session_does_without_them_too(old_daemon: str):
    async with oc.aio.connect(old_daemon) as session:
        assert session.lane == "grpc"
    with pytest.raises(oc.DaemonUnavailableError, match="there is no stream of calls"):
        await oc.aio.connect(old_daemon, lane="stream")
