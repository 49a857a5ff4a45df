"""The local lane: which sessions take it, and how its calls end."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire import lane_messages
from opdispatch_wire.frames import FrameKind
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.raw_lane import raw_lane
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.arange(3.0)


@pytest.fixture(scope="module")
def shared_workers() -> int:
    return 1


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
        assert wait_for(lambda: _answer_of(session) == 1)
        assert session.lane == "local"


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
