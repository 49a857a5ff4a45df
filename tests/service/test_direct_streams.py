"""Sessions over gRPC call interpreters directly, over streams to ports of theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.cli import main
from opdispatch_client.lanes import routes
from opdispatch_server.blame.suspicion import CLEARED_AFTER
from tests.service.conftest import WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.openings import Openings
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_direct_calls import DEADLY, pids, stopped
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)
# A call that a stopped daemon does not answer is waited for so long, in seconds.
MOMENT = 0.2
LARGE = np.arange(1_000_000.0)
TCP = "127.0.0.1:0"
StartTcp = Callable[..., RunningDaemon]


@pytest.fixture(scope="module")
def shared_daemon(loaded_tcp: RunningDaemon) -> RunningDaemon:
    return loaded_tcp


@pytest.fixture
def start(start_daemon: Callable[..., RunningDaemon]) -> StartTcp:
    """Start a daemon on TCP with one interpreter, unless told otherwise."""
    return lambda *options, **settings: start_daemon(
        *options, **{"workers": 1, "listen": [TCP], **settings}
    )


@contextmanager
def streaming(daemon: RunningDaemon, **options: Any) -> Iterator[oc.Session]:
    with daemon.connect(lane="stream", **{"timeout": 20, **options}) as session:
        yield session


@contextmanager
def with_doors(
    daemon: RunningDaemon, doors: Doors, path: Path, openings: Openings, **options: Any
) -> Iterator[oc.Session]:
    """A session that has the doors library loaded, and calls it directly."""
    with streaming(daemon, **options) as session:
        session.load(path)
        doors.let_out()
        session.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        assert openings.next().startswith("calls go to interpreter")
        yield session


def test_calls_go_on_without_the_daemon(loaded_tcp: RunningDaemon, openings: Openings):
    with streaming(loaded_tcp) as session:
        assert session.lane == "stream"
        scale, stack = session.ops.image.scale, session.ops.image.stack
        scale(X, 1.0)
        scale(LARGE, 1.0)
        with pytest.raises(oc.KernelError):
            stack([X, X[:2]])
        stack([X, X])
        assert openings.next() == "calls go to interpreter worker-1 directly"
        with stopped(loaded_tcp):
            for n in range(20):
                np.testing.assert_array_equal(scale(X, float(n)), X * n)
                np.testing.assert_array_equal(scale(LARGE, float(n)), LARGE * n)
            with pytest.raises(oc.KernelError, match=r"image::stack in interpreter worker-1"):
                stack([X, X[:2]])
            results = session.map("image::scale", ((X, float(n)) for n in range(300)))
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result, X * n)
            future = session.submit("image::scale", LARGE, 5.0)
            np.testing.assert_array_equal(future.result(LONGEST_WAIT), LARGE * 5)


async def test_the_asyncio_session_does_so_too(loaded_tcp: RunningDaemon, openings: Openings):
    async with oc.aio.connect(loaded_tcp.address, lane="stream", timeout=LONGEST_WAIT) as session:
        await session.ops.image.scale(X, 1.0)
        await asyncio.to_thread(openings.next)
        with stopped(loaded_tcp):
            for n in range(20):
                for x in (X, LARGE):
                    result = await session.ops.image.scale(x, float(n))
                    np.testing.assert_array_equal(result, x * n)


def test_a_session_may_want_the_daemon_to_see_every_call(loaded_tcp: RunningDaemon):
    with streaming(loaded_tcp, direct=False, timeout=1) as session:
        session.ops.image.scale(X, 1.0)
        with stopped(loaded_tcp), pytest.raises(oc.DeadlineExceededError):
            session.with_options(timeout=MOMENT).ops.image.scale(X, 1.0)


def test_progress_is_reported_and_written_arguments_come_back(
    loaded_tcp: RunningDaemon, openings: Openings
):
    told: list[oc.TransferProgress] = []
    with streaming(loaded_tcp) as session:
        session.ops.image.add_(np.zeros(2), np.ones(2))
        session.ops.image.scale(X, 1.0)
        openings.next()
        watched = session.with_options(on_progress=told.append).ops.image
        watched.scale(LARGE, 2.0)
        assert told[-1].bytes_sent == told[-1].bytes_received == LARGE.nbytes
        x = np.zeros(LARGE.size)
        assert watched.add_(x, LARGE) is x
        np.testing.assert_array_equal(x, LARGE)


def test_a_new_version_serves_every_call_that_begins_after_its_load(
    start: StartTcp, write_library: WriteLibrary, openings: Openings
):
    """Each asks again and again; a load is over when its caller has the answer."""
    daemon = start(workers=2)
    loaded, ended = [0], threading.Event()

    def ask() -> int:
        asked = 0
        with streaming(daemon) as session:
            while not ended.is_set():
                oldest = loaded[0]
                assert session.ops.const.get(X) >= oldest
                asked += 1
        return asked

    with streaming(daemon) as session:
        session.load(write_library("const", constant(0)), interpreters=2)
        with Background(ask) as one, Background(ask) as another:
            for _ in range(4):
                openings.next()
            for value in range(1, 12):
                session.load(write_library("const", constant(value)))
                loaded[0] = value
            ended.set()
            assert one.result() + another.result() > 20
        session.unload("const")
        with pytest.raises(oc.OperatorNotFoundError, match="was unloaded"):
            session.ops.const.get(X)
        assert session.check_invariants() == []


def test_a_call_under_way_finishes_though_its_library_is_unloaded(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    path = write_library("doors", door_library("doors"))
    with (
        with_doors(lent_daemon, doors, path, openings) as session,
        Background(session.ops.doors.enter, X, doors.folder, "last") as call,
    ):
        assert doors.next_inside() == "last"
        session.unload("doors")
        doors.let_out()
        assert call.result() == "last"


@pytest.mark.parametrize("x", [X, LARGE], ids=["small", "large"])
def test_a_call_of_an_interpreter_that_dies_runs_again(
    start: StartTcp,
    doors: Doors,
    write_library: WriteLibrary,
    openings: Openings,
    monkeypatch: pytest.MonkeyPatch,
    x: Any,
):
    monkeypatch.setattr(routes, "_REFUSAL_LASTS", 0.1)
    daemon = start()
    daemon.expects_errors = True
    path = write_library("doors", door_library("doors"))
    with with_doors(daemon, doors, path, openings) as session:
        with Background(session.ops.doors.enter, x, doors.folder, "again") as call:
            assert doors.next_inside() == "again"
            os.kill(pids(session)["worker-1"], signal.SIGKILL)
            assert doors.next_inside() == "again"
            doors.let_out()
            assert call.result() == "again"

        def call_until_direct() -> bool:
            doors.let_out()
            session.ops.doors.enter(x, doors.folder, "goes well")
            doors.next_inside()
            return openings.has_next()

        # The daemon sees each call of the suspect until so many have gone well.
        for _ in range(CLEARED_AFTER):
            call_until_direct()
        assert wait_for(call_until_direct)
        assert openings.next().startswith("calls go")
        assert session.check_invariants() == []


def test_a_call_that_writes_runs_once_though_its_interpreter_dies(
    start: StartTcp, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    daemon = start()
    daemon.expects_errors = True
    path = write_library("doors", door_library("doors"))
    with with_doors(daemon, doors, path, openings) as session:
        doors.let_out()
        session.ops.doors.enter_(np.zeros(2), doors.folder, "first")
        doors.next_inside()
        with Background(session.ops.doors.enter_, np.zeros(2), doors.folder, "once") as call:
            assert doors.next_inside() == "once"
            os.kill(pids(session)["worker-1"], signal.SIGKILL)
            with pytest.raises(oc.InterpreterDiedError, match="SIGKILL"):
                call.result()
        assert session.check_invariants() == []


def test_a_kernel_that_ends_its_interpreter_does_not_end_the_next_one(
    start: StartTcp, tmp_path: Path, write_library: WriteLibrary, openings: Openings
):
    daemon = start(workers=2)
    daemon.expects_errors = True
    runs = tmp_path / "runs"
    with streaming(daemon) as session:
        session.load(write_library("deadly", DEADLY), interpreters=2)
        session.ops.deadly.run(X, str(runs), False)
        openings.next()
        openings.next()
        with pytest.raises(oc.InterpreterDiedError, match="exited with status 3"):
            session.ops.deadly.run(X, str(runs), True)
        assert runs.read_text() == "ran\n" * 2
        session.ops.deadly.run(X, str(runs), False)


def test_a_library_runs_no_more_calls_at_a_time_than_it_says(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    """Whichever way they come."""
    path = write_library("doors", door_library("doors", max_concurrency=2))
    with (
        with_doors(lent_daemon, doors, path, openings) as session,
        lent_daemon.connect(direct=False) as other,
        lent_daemon.connect() as local,
    ):
        doors.let_out()
        local.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        calls = [
            each.submit("doors::enter", X, doors.folder, str(n))
            for n, each in enumerate((session, other, local) * 2)
        ]
        doors.next_inside()
        doors.next_inside()
        for _ in range(4):
            assert doors.no_other_is_inside()
            doors.let_out()
            doors.next_inside()
        doors.let_out(2)
        assert [call.result(LONGEST_WAIT) for call in calls] == [str(n) for n in range(6)]


def test_a_full_queue_sends_calls_away(
    start: StartTcp, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    path = write_library("doors", door_library("doors"))
    with with_doors(start("--queue", "2"), doors, path, openings) as session:
        calls = [session.submit("doors::enter", X, doors.folder, str(n)) for n in range(3)]
        assert doors.next_inside() == "0"
        with pytest.raises(oc.QueueFullError, match="queued for interpreter worker-1") as full:
            session.ops.doors.enter(X, doors.folder, "too many")
        assert full.value.facts["started"] == "no"
        doors.let_out(3)
        assert [call.result(LONGEST_WAIT) for call in calls] == ["0", "1", "2"]


def test_a_queued_call_that_is_cancelled_or_late_never_runs(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    path = write_library("doors", door_library("doors"))
    with lent_daemon.connect() as loader:
        loader.load(write_library("const", constant(1)))
    with (
        with_doors(lent_daemon, doors, path, openings) as session,
        streaming(lent_daemon, timeout=0.5) as impatient,
    ):
        doors.let_out()
        impatient.ops.doors.enter(X, doors.folder, "first")
        doors.next_inside()
        openings.next()
        for each in (session, impatient) * 2:
            assert each.ops.const.get(X) == 1  # and is a direct call the second time
        runs = session.submit("doors::enter", X, doors.folder, "runs")
        assert doors.next_inside() == "runs"
        cancelled = session.submit("doors::enter", X, doors.folder, "cancelled")
        with pytest.raises(oc.DeadlineExceededError):
            impatient.ops.doors.enter(X, doors.folder, "late")
        assert cancelled.cancel()
        for each in (session, impatient):
            # The interpreter has read what was sent before this call.
            assert each.ops.const.get(X) == 1
        last = session.submit("doors::enter", X, doors.folder, "last")
        doors.let_out(2)
        assert (runs.result(LONGEST_WAIT), last.result(LONGEST_WAIT)) == ("runs", "last")
        assert doors.next_inside() == "last"
        assert doors.no_other_is_inside()


def test_a_call_that_takes_too_long_is_stopped(
    start: StartTcp, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    daemon = start("--kernel-timeout", "0.5")
    daemon.expects_errors = True
    path = write_library("doors", door_library("doors"))
    with with_doors(daemon, doors, path, openings) as session:
        hangs = session.submit("doors::enter", X, doors.folder, "hangs")
        assert doors.next_inside() == "hangs"
        with pytest.raises(oc.KernelTimeoutError, match=r"ran for longer than 0\.5 s in interp"):
            hangs.result(LONGEST_WAIT)


def test_a_stopped_daemon_lets_direct_calls_end(
    start: StartTcp, doors: Doors, write_library: WriteLibrary, openings: Openings
):
    daemon = start()
    path = write_library("doors", door_library("doors"))
    with with_doors(daemon, doors, path, openings) as session:
        with Background(session.ops.doors.enter, X, doors.folder, "last") as call:
            assert doors.next_inside() == "last"
            daemon.signal(signal.SIGTERM)
            assert wait_for(lambda: "stopping" in daemon.log())
            doors.let_out()
            assert call.result() == "last"
        daemon.wait()


def test_without_ports_calls_go_through_the_daemon(start: StartTcp, write_library: WriteLibrary):
    daemon = start("--direct-ports", "none")
    with streaming(daemon, timeout=1) as session:
        session.load(write_library("const", constant(7)))
        assert [session.ops.const.get(X) for _ in range(20)] == [7] * 20
        with stopped(daemon), pytest.raises(oc.DeadlineExceededError):
            session.with_options(timeout=MOMENT).ops.const.get(X)


def test_interpreters_find_a_free_port_of_the_range(start: StartTcp, openings: Openings):
    """With one for two of them, one is not reached; its calls go through the daemon."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = start("--direct-ports", f"{port}-{port}", workers=2)
    path = daemon.folder / "const.py"
    path.write_text(constant(7))
    assert wait_for(
        lambda: f"none of the ports {port} to {port} of 127.0.0.1 is free" in daemon.log()
    )
    with streaming(daemon) as session:
        session.load(path, interpreters=2)
        assert [session.ops.const.get(X) for _ in range(3)] == [7] * 3
        assert openings.next().startswith("calls go")
        with stopped(daemon):
            assert [session.ops.const.get(X) for _ in range(3)] == [7] * 3


@pytest.mark.parametrize("text", ["5", "9-5", "0-4", "a-b", "1-70000"])
def test_a_range_of_ports_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
):
    assert main(["serve", "--state", str(tmp_path), "--direct-ports", text]) == 2
    assert f"{text!r} is not a range of ports" in capsys.readouterr().err
