"""The local lane: which sessions take it, and how its calls end."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.lanes import lane_messages, lane_socket
from opdispatch_wire.lanes.frame_kind import FrameKind
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.raw_lane import raw_lane
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import accept

SHARED_WORKERS = 1
X = np.arange(3.0)


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
    except (oc.DaemonUnavailableError, oc.DeadlineExceededError) as error:
        return error


def test_a_session_finds_the_lane_of_the_daemon_that_comes_back(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect(wait=0) as session:
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        first.signal(signal.SIGKILL)
        first.wait()
        with pytest.raises(oc.DaemonUnavailableError):
            session.ops.const.get(X)
        start_daemon(workers=1)
        assert wait_for(lambda: _answer_of(session) == 1)
        assert session.lane == "local"


@contextmanager
def mute_lane(path: str) -> Iterator[socket.socket]:
    """In the place of a daemon's lane, one that never answers."""
    lane = Path(path)
    hidden = lane.rename(lane.with_name("hidden"))
    try:
        with closing(lane_socket.listen(path)) as listener:
            yield listener
    finally:
        hidden.rename(lane)


def is_still_tried(listener: socket.socket) -> bool:
    """Whether the caller that has connected waits for the first word."""
    with accept(listener) as connection:
        assert connection.recv(1 << 16)
        return not select.select([connection], [], [], 0)[0]


def come_back(first: RunningDaemon, start_daemon: StartDaemon) -> str:
    """Kill a daemon and restart it with all it has loaded; return the path of its new lane."""
    first.signal(signal.SIGKILL)
    first.wait()
    with start_daemon(workers=1).connect() as session:
        return session.server_info.lane


def test_a_call_waits_for_a_new_lane_no_longer_than_for_its_answer(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as loading:
        loading.load(write_library("const", constant(1)))
    with first.connect(timeout=1, direct=False) as session:
        with mute_lane(come_back(first, start_daemon)) as listener:
            answers = []
            while not select.select([listener], [], [], 0)[0]:
                answers.append(_answer_of(session))
            assert isinstance(answers[-1], oc.DeadlineExceededError)
            assert is_still_tried(listener)
        assert wait_for(lambda: _answer_of(session) == 1)


async def test_a_task_waits_for_a_new_lane_no_longer_than_for_its_answer(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    async def answer_of(session: oc.aio.AsyncSession) -> object:
        try:
            return await session.ops.const.get(X)
        except (oc.DaemonUnavailableError, oc.DeadlineExceededError) as error:
            return error

    first = start_daemon(workers=1)
    with first.connect() as loading:
        loading.load(write_library("const", constant(1)))
    async with oc.aio.connect(first.address, timeout=1, direct=False) as session:
        with mute_lane(come_back(first, start_daemon)) as listener:
            answers = []
            while not select.select([listener], [], [], 0)[0]:
                answers.append(await answer_of(session))
            assert isinstance(answers[-1], oc.DeadlineExceededError)
            assert is_still_tried(listener)
        while await answer_of(session) != 1:
            await asyncio.sleep(0)


def test_two_calls_of_one_id_end_the_lane(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, tmp_path: Path
):
    with lent_daemon.connect() as session, raw_lane(session.server_info.lane) as lane:
        session.load(write_library("gate", GATE))
        lane.greet()
        lane.call(7, "gate::wait", X, str(tmp_path), 1)
        lane.call(7, "gate::wait", X, str(tmp_path), 2)
        kind, payload = lane.hear() or (None, b"")
        assert kind is FrameKind.REFUSAL
        assert "$.id is 7" in str(lane_messages.refusal_error(payload))
        assert lane.hear() is None
        (tmp_path / "open").touch()
        assert session.check_invariants() == []


def test_the_end_of_a_lane_is_the_end_of_its_calls_wait(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, tmp_path: Path
):
    with lent_daemon.connect() as session:
        session.load(write_library("gate", GATE))
        with raw_lane(session.server_info.lane) as lane:
            lane.greet()
            for number in range(1, 4):
                lane.call(number, "gate::wait", X, str(tmp_path), number)
            assert wait_for((tmp_path / "entered-1").exists)
        (tmp_path / "open").touch()
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)
        with Background(session.ops.gate.wait, X, str(tmp_path), 9) as last:
            assert last.result() == 9
