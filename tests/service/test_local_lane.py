"""The local lane: which sessions take it, and what a peer on it can do to others (nothing)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire import lane_messages
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError
from opdispatch_wire.frames import HEADER, FrameKind, FrameReader, frame_header
from opdispatch_wire.v1 import execution_pb2
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.arange(3.0)


class RawLane:
    """A connection to the daemon's lane that says whatever a test wants it to say."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self._reader = FrameReader(1 << 24)

    def say(self, kind: FrameKind, payload: bytes) -> None:
        self.socket.sendall(frame_header(kind, len(payload)) + payload)

    def hear(self) -> tuple[FrameKind, bytes] | None:
        """The next frame; None at the end."""
        while (frame := self._reader.next_frame()) is None:
            try:
                count = self.socket.recv_into(self._reader.space())
            except ConnectionResetError:
                return None
            if not count:
                return None
            self._reader.received(count)
        return frame[0], bytes(frame[1])

    def greet(self) -> None:
        self.say(FrameKind.HELLO, lane_messages.hello(1 << 24))
        frame = self.hear()
        assert frame is not None
        assert frame[0] is FrameKind.WELCOME

    def call(self, number: int, operator: str, *args: object) -> None:
        request = call_request(operator, args, {}, request_id=number)
        self.say(FrameKind.CALL, request.SerializeToString())


@contextmanager
def raw_lane(session: oc.Session) -> Iterator[RawLane]:
    lane = RawLane(session.server_info.lane)
    try:
        yield lane
    finally:
        lane.socket.close()


def test_a_session_takes_the_lane_where_it_can(loaded: RunningDaemon):
    with loaded.connect() as session:
        assert session.lane == "local"
        assert Path(session.server_info.lane).stat().st_mode & 0o777 == 0o600
    with oc.connect(loaded.address, lane="grpc") as session:
        assert session.lane == "grpc"
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
    with oc.connect(loaded.address, lane="local") as session:
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
    with pytest.raises(
        ValueError, match="lane is 'pigeon'; expected one of auto, local, stream, grpc"
    ):
        oc.connect(loaded.address, lane="pigeon")  # type: ignore[arg-type]


def test_a_session_that_insists_says_why_there_is_no_lane(loaded: RunningDaemon):
    with loaded.connect() as session:
        path = Path(session.server_info.lane)
    hidden = path.with_name("hidden")
    path.rename(hidden)
    try:
        with loaded.connect() as session:
            assert session.lane == "stream"
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        with pytest.raises(oc.DaemonUnavailableError, match="there is no local lane"):
            oc.connect(loaded.address, lane="local")
    finally:
        hidden.rename(path)


async def test_the_asyncio_session_takes_it_too(loaded: RunningDaemon):
    async with oc.aio.connect(loaded.address) as session:
        assert session.lane == "local"
        np.testing.assert_array_equal(await session.ops.image.pipeline(X), 1 - X * 3)
    async with oc.aio.connect(loaded.address, lane="grpc") as session:
        assert session.lane == "grpc"
        np.testing.assert_array_equal(await session.ops.image.pipeline(X), 1 - X * 3)


def _answer_of(session: oc.Session) -> object:
    try:
        return session.ops.const.get(X)
    except oc.DaemonUnavailableError as error:
        return error


def test_a_session_finds_the_lane_of_the_daemon_that_comes_back(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon()
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        first.signal(signal.SIGKILL)
        first.wait()
        with pytest.raises(oc.DaemonUnavailableError):
            session.ops.const.get(X)
        start_daemon()
        assert wait_for(lambda: _answer_of(session) == 1, 20)
        assert session.lane == "local"


def _garbage(lane: RawLane) -> None:
    lane.socket.sendall(b"\xde\xad\xbe\xef" * 1000)


def _http(lane: RawLane) -> None:
    lane.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def _call_before_hello(lane: RawLane) -> None:
    lane.call(1, "image::pipeline", X)


def _reply(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.REPLY, execution_pb2.CallReply(id=1).SerializeToString())


def _hello_twice(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.HELLO, lane_messages.hello(1 << 24))


def _no_request(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.CALL, b"\xff" * 20)


def _too_large(lane: RawLane) -> None:
    lane.greet()
    lane.socket.sendall(HEADER.pack(2**32 - 1, FrameKind.CALL, bytes(3)))


def _long_cancel(lane: RawLane) -> None:
    lane.greet()
    lane.say(FrameKind.CANCEL, bytes(100_000))


@pytest.mark.parametrize(
    "speak",
    [
        _garbage,
        _http,
        _call_before_hello,
        _reply,
        _hello_twice,
        _no_request,
        _too_large,
        _long_cancel,
    ],
)
def test_what_makes_no_sense_ends_that_lane_and_no_other(
    unharmed: oc.Session, speak: Callable[[RawLane], None]
):
    with raw_lane(unharmed) as lane:
        speak(lane)
        last = lane.hear()
        if last is not None:
            assert last[0] is FrameKind.REFUSAL
            assert isinstance(lane_messages.refusal_error(last[1]), WireError)
            assert lane.hear() is None


def test_two_calls_of_one_id_end_the_lane(daemon: RunningDaemon, write_library: WriteLibrary):
    with daemon.connect() as session, raw_lane(session) as lane:
        session.load(write_library("gate", GATE))
        lane.greet()
        lane.call(7, "gate::wait", X, str(daemon.folder), 1)
        lane.call(7, "gate::wait", X, str(daemon.folder), 2)
        kind, payload = lane.hear() or (None, b"")
        assert kind is FrameKind.REFUSAL
        assert "$.id is 7" in str(lane_messages.refusal_error(payload))
        assert lane.hear() is None
        (daemon.folder / "open").touch()
        assert session.check_invariants() == []


def test_a_bad_call_is_an_error_of_that_call_alone(unharmed: oc.Session):
    with raw_lane(unharmed) as lane:
        lane.greet()
        lane.call(1, "no::such", X)
        lane.call(2, "image::pipeline", X)
        replies = {}
        for _ in range(2):
            kind, payload = lane.hear() or (None, b"")
            assert kind is FrameKind.REPLY
            reply = execution_pb2.CallReply.FromString(payload)
            replies[reply.id] = reply
        assert "no::such" in replies[1].error.message
        assert not replies[2].HasField("error")


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 60])
def test_a_frame_that_is_cut_off_hurts_nobody(unharmed: oc.Session, cut: int):
    with raw_lane(unharmed) as lane:
        lane.greet()
        request = call_request("image::pipeline", (X,), {}, request_id=1).SerializeToString()
        lane.socket.sendall((frame_header(FrameKind.CALL, len(request)) + request)[:cut])
        lane.socket.shutdown(socket.SHUT_WR)
        frame = lane.hear()
        assert frame is None or frame[0] is FrameKind.REFUSAL


def _say_until_nobody_listens(lane: RawLane, x: np.ndarray) -> int:
    """How many calls the daemon takes of a client that never reads a reply."""
    for sent in range(10_000):
        try:
            lane.call(sent + 1, "image::pipeline", x)
        except TimeoutError:
            return sent
    return 10_000


def test_a_client_that_stops_reading_is_not_read_any_more(unharmed: oc.Session):
    big = np.zeros(100_000)
    with raw_lane(unharmed) as lane:
        lane.greet()
        lane.socket.settimeout(1.0)
        sent = _say_until_nobody_listens(lane, big)
        assert 0 < sent < 1000
        np.testing.assert_array_equal(unharmed.ops.image.pipeline(X), 1 - X * 3)


def _write_half(path: str) -> None:
    lane = RawLane(path)
    lane.greet()
    lane.socket.sendall(HEADER.pack(1_000_000, FrameKind.CALL, bytes(3)) + bytes(500_000))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_is_killed_in_the_middle_of_a_write(unharmed: oc.Session):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write_half, args=(unharmed.server_info.lane,))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


def test_the_end_of_a_lane_is_the_end_of_its_calls_wait(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    with daemon.connect() as session:
        session.load(write_library("gate", GATE))
        with raw_lane(session) as lane:
            lane.greet()
            for number in range(1, 4):
                lane.call(number, "gate::wait", X, str(daemon.folder), number)
            assert wait_for((daemon.folder / "entered-1").exists, 10)
        (daemon.folder / "open").touch()
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0, 10)
        with Background(session.ops.gate.wait, X, str(daemon.folder), 9) as last:
            assert last.result() == 9
