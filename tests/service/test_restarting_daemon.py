"""Sessions wait for a daemon that is away, and go on with the next one at its address."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.zeros(2)

each_lane = pytest.mark.parametrize("lane", ["local", "stream", "grpc"])


def end(daemon: RunningDaemon, how: signal.Signals = signal.SIGKILL) -> None:
    daemon.signal(how)
    daemon.wait()
    assert wait_for(lambda: not daemon.processes())


@each_lane
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_requests_made_while_the_daemon_is_away_are_answered_by_the_next_one(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    lane: LaneChoice,
    how: signal.Signals,
):
    first = start_daemon(workers=1)
    with first.connect(lane=lane) as session:
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        end(first, how)
        requests: list[Callable[[], object]] = [
            lambda: session.ops.const.get(X),
            lambda: session.submit("const::get", X).result(60),
            lambda: len(session.libraries()),
            lambda: session.load(write_library("other", constant(2, namespace="other"))).version,
        ]
        running = [Background(each).__enter__() for each in requests]
        second = start_daemon(workers=1)
        assert [each.result() for each in running] == [1, 1, 1, 1]
        assert session.ops.other.get(X) == 2
        assert session.lane == lane
        assert session.refresh_server_info().pid == second.process.pid


@each_lane
async def test_asyncio_calls_are_answered_by_the_next_daemon(
    start_daemon: StartDaemon, write_library: WriteLibrary, lane: LaneChoice
):
    first = await asyncio.to_thread(start_daemon, workers=1)
    async with oc.aio.connect(first.address, lane=lane) as session:
        await session.load(write_library("const", constant(1)))
        await asyncio.to_thread(end, first)
        calls = [asyncio.ensure_future(session.call("const::get", X)) for _ in range(20)]
        await asyncio.to_thread(start_daemon, workers=1)
        assert await asyncio.gather(*calls) == [1] * 20


@each_lane
def test_a_call_under_way_runs_again_only_if_it_writes_to_nothing(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors, lane: LaneChoice
):
    first = start_daemon(workers=1)
    with first.connect(lane=lane, direct=False) as session:
        session.load(write_library("doors", door_library("doors", max_concurrency=4)))
        enter, enter_ = session.ops.doors.enter, session.ops.doors.enter_
        insists = session.with_options(retry=False)
        with (
            Background(enter, X, doors.folder, "reads") as reads,
            Background(enter_, np.zeros(2), doors.folder, "writes") as writes,
            Background(insists.call, "doors::enter", X, doors.folder, "once") as once,
        ):
            assert {doors.next_inside() for _ in range(3)} == {"reads", "writes", "once"}
            end(first)
            start_daemon(workers=1)
            for each in (writes, once):
                with pytest.raises(oc.DaemonUnavailableError, match="may or may not have run"):
                    each.result()
            assert doors.next_inside() == "reads"
            doors.let_out()
            assert reads.result() == "reads"


def test_a_call_that_ends_its_daemon_runs_twice_at_most(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors
):
    first = start_daemon(workers=1)
    with first.connect(direct=False) as session:
        session.load(write_library("doors", door_library("doors")))
        with Background(session.ops.doors.enter, X, doors.folder, "reads") as reads:
            for _ in range(2):
                assert doors.next_inside() == "reads"
                end(first)
                first = start_daemon(workers=1)
            with pytest.raises(oc.DaemonUnavailableError, match="may or may not have run"):
                reads.result()


def test_the_error_says_for_how_long_was_waited(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with (
        first.connect(wait=0.2) as patient,
        first.connect(timeout=0.2) as hurried,
        first.connect(wait=0) as impatient,
    ):
        patient.load(write_library("const", constant(1)))
        end(first)
        for session, waits in ((patient, True), (hurried, True), (impatient, False)):
            for request in (lambda s=session: s.ops.const.get(X), session.libraries):
                with pytest.raises(oc.DaemonUnavailableError, match="no daemon answers") as caught:
                    request()
                assert bool(re.search(r"waited for 0\.\d+ s", str(caught.value))) is waits
                assert ("waited" in caught.value.facts) is waits


def test_a_call_that_may_have_run_says_so_when_no_daemon_comes_back(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors
):
    first = start_daemon(workers=1)
    with first.connect(direct=False, wait=0.2) as session:
        session.load(write_library("doors", door_library("doors")))
        with Background(session.ops.doors.enter, X, doors.folder, "reads") as reads:
            assert doors.next_inside() == "reads"
            end(first)
            with pytest.raises(oc.DaemonUnavailableError, match="may or may not have run"):
                reads.result()


def test_connect_waits_only_with_a_wait_of_its_own(start_daemon: StartDaemon):
    first = start_daemon(workers=1)
    end(first)
    with pytest.raises(oc.DaemonUnavailableError, match="no daemon answers") as caught:
        first.connect()
    assert "waited" not in caught.value.facts
    with Background(first.connect, wait=60) as connecting:
        second = start_daemon(workers=1)
        with connecting.result() as session:
            assert session.server_info.pid == second.process.pid


@pytest.mark.parametrize("wait", [-1, float("nan"), "30"])
def test_a_wait_that_is_no_time_is_refused(wait: object):
    with pytest.raises((ValueError, TypeError), match="wait is"):
        oc.connect("unix:///nowhere", wait=wait)  # type: ignore[arg-type]


def test_close_ends_the_wait(start_daemon: StartDaemon, write_library: WriteLibrary):
    first = start_daemon(workers=1)
    session = first.connect(wait=600)
    session.load(write_library("const", constant(1)))
    end(first)
    with (
        Background(session.ops.const.get, X) as call,
        Background(session.libraries) as listing,
    ):
        future = session.submit("const::get", X)
        session.close()
        for result in (call.result, listing.result, lambda: future.result(60)):
            with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
                result()


def test_a_daemon_that_drains_finishes_its_calls_while_the_session_waits_for_the_next(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors
):
    first = start_daemon(workers=1)
    with first.connect(direct=False) as session:
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        session.load(write_library("const", constant(1)))
        with Background(session.ops.doors.enter, X, doors.folder, "last") as last:
            assert doors.next_inside() == "last"
            first.signal(signal.SIGTERM)
            assert wait_for(lambda: "stopping" in first.log())
            with Background(session.ops.const.get, X) as later:
                doors.let_out()
                assert last.result() == "last"
                assert first.wait() == 0
                start_daemon(workers=1)
                assert later.result() == 1
