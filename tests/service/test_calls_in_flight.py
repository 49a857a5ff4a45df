"""Many calls in flight, from one session, over each lane."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, as_completed, wait
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.conftest import StartDaemon, WriteLibrary, is_idle
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT

WORKERS = 1
SHARED_WORKERS = 1
X = np.arange(3.0)
LANES: list[LaneChoice] = ["local", "stream", "grpc"]
# Many times as many as a map has in flight; in `make stress`, thousands.
MANY = 3_000 if "OPDISPATCH_STRESS_SECONDS" in os.environ else 800

each_lane = pytest.mark.parametrize("lane", LANES)


@pytest.fixture
def first_door(tmp_path: Path) -> Iterator[Doors]:
    """For one call alone: of those at the same door, any may be the one that is let out."""
    folder = tmp_path / "first"
    folder.mkdir()
    door = Doors(folder)
    yield door
    door.let_out(5)
    door.close()


@pytest.fixture
def doors_daemon(
    lent_daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
) -> Iterator[RunningDaemon]:
    """A daemon whose interpreter runs two calls at a time, which wait to be let out."""
    with lent_daemon.connect() as session:
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
    yield lent_daemon
    with lent_daemon.connect() as session:
        assert wait_for(lambda: is_idle(session))


@each_lane
def test_a_session_says_which_lane_it_takes(loaded: RunningDaemon, lane: LaneChoice):
    with loaded.connect(lane=lane) as session:
        assert session.lane == lane
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)


@each_lane
def test_many_calls_come_back_in_order(loaded: RunningDaemon, lane: LaneChoice):
    with loaded.connect(lane=lane) as session:
        results = session.map("image::scale", ((X, float(n)) for n in range(MANY)))
        for n, result in enumerate(results):
            np.testing.assert_array_equal(result, X * n)
        assert n == MANY - 1


@each_lane
def test_futures_have_results_and_errors_as_calls_do(loaded: RunningDaemon, lane: LaneChoice):
    with loaded.connect(lane=lane) as session:
        mine = np.zeros(3)
        written = session.submit("image::add_", mine, X)
        futures = [session.submit("image::scale", X, by=float(n)) for n in range(200)]
        raised = session.submit("image::boom", X)
        missing = session.submit("no::such", X)
        unfit = session.submit("image::scale", object())
        assert written.result() is mine
        np.testing.assert_array_equal(mine, X)
        for n, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(), X * n)
        assert isinstance(raised.exception(), oc.KernelError)
        assert isinstance(missing.exception(), oc.OperatorNotFoundError)
        assert isinstance(unfit.exception(), oc.WireError)
        assert len(list(as_completed(futures, timeout=LONGEST_WAIT))) == 200


@each_lane
def test_threads_wait_beside_futures(loaded: RunningDaemon, lane: LaneChoice):
    with loaded.connect(lane=lane) as session:

        def call_many(factor: float) -> bool:
            return all(
                np.array_equal(session.ops.image.scale(X, factor), X * factor) for _ in range(100)
            )

        with (
            Background(call_many, 2.0) as one,
            Background(call_many, 3.0) as two,
            session.map("image::scale", ((X, float(n)) for n in range(500))) as results,
        ):
            for n, result in enumerate(results):
                np.testing.assert_array_equal(result, X * n)
            assert one.result()
            assert two.result()


@each_lane
def test_the_first_error_of_a_map_is_raised_in_its_place(loaded: RunningDaemon, lane: LaneChoice):
    with loaded.connect(lane=lane) as session:
        arguments = [(X, 2.0) if n != 10 else ("no tensor", 2.0) for n in range(100)]
        results = session.map("image::scale", arguments)
        for _ in range(10):
            np.testing.assert_array_equal(next(results), X * 2)
        with pytest.raises(oc.OpdispatchError):
            next(results)
        assert next(results, "nothing") == "nothing"
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)


@each_lane
def test_a_callback_may_make_calls(
    loaded: RunningDaemon, lane: LaneChoice, caplog: pytest.LogCaptureFixture
):
    with loaded.connect(lane=lane) as session:
        answers, done = [], threading.Event()

        def callback(future: object) -> None:
            answers.append(session.ops.image.scale(X, 2.0))
            answers.append(session.submit("image::scale", X, 3.0).result())
            done.set()

        future = session.submit("image::pipeline", X)
        future.add_done_callback(lambda future: future.no_such_thing)  # is logged
        future.add_done_callback(callback)
        assert done.wait(LONGEST_WAIT)
        np.testing.assert_array_equal(answers, [X * 2, X * 3])
        assert "exception calling callback" in caplog.text


def test_a_callback_may_wait_for_a_call_whose_route_does_not_hold_any_more(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("const", constant(1)))
    for _ in range(3):
        assert session.ops.const.get(X) == 1
    answers: Future[int] = Future()

    def callback(future: object) -> None:
        session.load(write_library("const", constant(2)))
        try:
            answers.set_result(session.submit("const::get", X).result(LONGEST_WAIT))
        except BaseException as error:
            answers.set_exception(error)

    session.submit("const::get", X).add_done_callback(callback)
    assert answers.result(LONGEST_WAIT) == 2


NOTES = """\
import os
from opdispatch import Library

lib = Library("notes", "DEF")
lib.define("run(Tensor x, str folder) -> int")


def run(x, folder):
    open(os.path.join(folder, f"{{x.size}}"), "w").close()
    return {value}


lib.impl("run", run, "CPU")
"""


def is_writing() -> bool:
    """Whether a thread waits for the other side to take what it sends."""
    return any(thread.name == "frame-writer" for thread in threading.enumerate())


def test_a_cancelled_call_is_not_made_again_where_its_route_does_not_hold(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    folder = str(tmp_path)
    with daemon.connect() as other:
        session.load(write_library("notes", NOTES.format(value=1)))
        for _ in range(3):
            assert session.ops.notes.run(X, folder) == 1
        other.load(write_library("notes", NOTES.format(value=2)))
        daemon.signal(signal.SIGSTOP)
        try:
            # The first one is too large for the daemon to take it now, and keeps the others.
            arguments = [(np.zeros(4_000_000), folder), *[(np.zeros(2), folder)] * 500]
            results = session.map("notes::run", arguments, in_flight=501)
            assert wait_for(is_writing)
            results.close()
        finally:
            daemon.signal(signal.SIGCONT)
        assert session.ops.notes.run(X[:1], folder) == 2
        assert wait_for(lambda: is_idle(session))
        assert not (tmp_path / "2").exists()


def test_a_call_that_no_thread_could_make_again_is_refused_and_not_made_later(
    daemon: RunningDaemon,
    session: oc.Session,
    write_library: WriteLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    folder, threads = str(tmp_path), ScarceThreads(monkeypatch, "call-second-ways")
    with daemon.connect() as other:
        session.load(write_library("notes", NOTES.format(value=1)))
        for _ in range(3):
            assert session.ops.notes.run(X[:1], folder) == 1
        other.load(write_library("notes", NOTES.format(value=2)))  # the route does not hold
        with pytest.raises(oc.RefusedError, match="can't start new thread") as why:
            session.submit("notes::run", X[:2], folder).result(LONGEST_WAIT)
        assert why.value.facts["started"] == "no"
        threads.are_lacking = False
        for _ in range(2):
            assert session.ops.notes.run(X[:1], folder) == 2
        other.load(write_library("notes", NOTES.format(value=3)))
        assert session.submit("notes::run", X, folder).result(LONGEST_WAIT) == 3
        assert wait_for(lambda: is_idle(session))
        assert threads.tries == 2
        assert (tmp_path / "3").exists()
        assert not (tmp_path / "2").exists()


def test_a_callback_that_has_no_thread_runs_once(
    loaded: RunningDaemon, monkeypatch: pytest.MonkeyPatch
):
    threads, ran = ScarceThreads(monkeypatch, "call-callbacks"), SimpleQueue[str]()
    with loaded.connect() as session:
        future = session.submit("image::pipeline", X)
        future.add_done_callback(lambda _: ran.put("first"))
        assert ran.get(timeout=LONGEST_WAIT) == "first"
        threads.are_lacking = False
        for name in ("second", "third"):
            future = session.submit("image::pipeline", X)
            future.add_done_callback(lambda _, name=name: ran.put(name))
            assert ran.get(timeout=LONGEST_WAIT) == name
        assert ran.empty()


@each_lane
def test_a_cancelled_call_never_begins(doors_daemon: RunningDaemon, doors: Doors, lane: LaneChoice):
    with doors_daemon.connect(lane=lane) as session:
        first = [session.submit("doors::enter", X, doors.folder, f"first-{n}") for n in range(2)]
        assert sorted(doors.next_inside() for _ in first) == ["first-0", "first-1"]
        queued = [session.submit("doors::enter", X, doors.folder, f"queued-{n}") for n in range(5)]
        assert wait_for(lambda: session.interpreters()[0].calls_queued == 5)
        assert all(future.cancel() for future in queued)
        assert wait_for(lambda: session.interpreters()[0].calls_queued == 0)
        with pytest.raises(CancelledError):
            queued[0].result()
        assert len(wait(queued, timeout=LONGEST_WAIT).done) == 5
        # Those that run go on, and what they return is thrown away.
        assert first[0].cancel()
        doors.let_out(2)
        assert first[1].result(LONGEST_WAIT) == "first-1"
        last = session.submit("doors::enter", X, doors.folder, "last")
        assert doors.next_inside() == "last"
        doors.let_out()
        assert last.result(LONGEST_WAIT) == "last"
        assert doors.no_other_is_inside()


@each_lane
def test_closing_a_map_cancels_its_calls(
    doors_daemon: RunningDaemon, doors: Doors, first_door: Doors, lane: LaneChoice
):
    with doors_daemon.connect(lane=lane) as session:
        folders = [first_door.folder, *[doors.folder] * 49]
        arguments = [(X, folder, str(n)) for n, folder in enumerate(folders)]
        with session.map("doors::enter", arguments, in_flight=20) as results:
            first_door.next_inside()
            assert wait_for(lambda: session.interpreters()[0].calls_queued == 18)
            first_door.let_out()
            assert next(results) == "0"
        assert wait_for(lambda: session.interpreters()[0].calls_queued == 0)
        doors.let_out(50)  # those that the interpreter has already run on
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)


@each_lane
def test_a_future_is_late_when_the_time_of_the_session_is_over(
    doors_daemon: RunningDaemon, doors: Doors, lane: LaneChoice
):
    with doors_daemon.connect(lane=lane, timeout=0.5) as session:
        futures = [session.submit("doors::enter", X, doors.folder, str(n)) for n in range(4)]
        for future in futures:
            assert isinstance(future.exception(20), oc.DeadlineExceededError)
        doors.let_out(2)
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)
        doors.let_out()
        assert (
            session.submit("doors::enter", X, doors.folder, "later").result(LONGEST_WAIT) == "later"
        )


@each_lane
def test_the_death_of_the_daemon_is_every_futures_error(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors, lane: LaneChoice
):
    first = start_daemon(workers=1)
    with first.connect(lane=lane, wait=0) as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        futures = [session.submit("doors::enter", X, doors.folder, str(n)) for n in range(100)]
        with Background(session.ops.doors.enter, X, doors.folder, "waits") as beside:
            doors.next_inside()
            first.signal(signal.SIGKILL)
            first.wait()
            for future in futures:
                assert isinstance(future.exception(20), oc.DaemonUnavailableError)
            with pytest.raises(oc.DaemonUnavailableError):
                beside.result()
        assert isinstance(session.submit("const::get", X).exception(20), oc.DaemonUnavailableError)
        start_daemon(workers=1)
        assert wait_for(lambda: session.submit("const::get", X).exception(20) is None)
        assert session.lane == lane
        assert list(session.map("const::get", [(X,)] * 100)) == [1] * 100


@each_lane
def test_closing_the_session_ends_its_futures(
    doors_daemon: RunningDaemon, doors: Doors, lane: LaneChoice
):
    session = doors_daemon.connect(lane=lane)
    called = threading.Event()
    futures = [session.submit("doors::enter", X, doors.folder, str(n)) for n in range(20)]
    futures[0].add_done_callback(lambda _: called.set())
    results = session.map("doors::enter", [(X, doors.folder, "map")] * 20)
    doors.next_inside()
    session.close()
    for future in futures:
        error = future.exception(20)
        assert isinstance(error, oc.DaemonUnavailableError)
        assert "is closed" in str(error)
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        next(results)
    assert called.wait(LONGEST_WAIT)
    after = session.submit("doors::enter", X, doors.folder, "after")
    assert isinstance(after.exception(10), oc.DaemonUnavailableError)
    doors.let_out(50)  # also those that the interpreter has already run on


@each_lane
def test_a_session_that_floods_leaves_room_for_another(loaded: RunningDaemon, lane: LaneChoice):
    begun, enough = threading.Event(), threading.Event()

    def flood() -> None:
        with loaded.connect(lane=lane) as session:
            arguments = iter(lambda: (X,), None)
            results = session.map("image::pipeline", arguments, in_flight=500)
            for _ in results:
                begun.set()
                if enough.is_set():
                    break
            results.close()

    with Background(flood) as flooding, loaded.connect(lane=lane) as session:
        assert begun.wait(LONGEST_WAIT)
        for _ in range(20):
            np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        enough.set()
        flooding.result()
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)


@each_lane
def test_large_results_wait_for_their_reader(loaded: RunningDaemon, lane: LaneChoice):
    big = np.zeros(200_000)
    with loaded.connect(lane=lane) as session:
        results = session.map("image::scale", ((big, 1.0) for _ in range(40)))
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
        assert sum(result.size for result in results) == 40 * big.size


@each_lane
async def test_the_asyncio_session_maps_too(loaded: RunningDaemon, lane: LaneChoice):
    async with oc.aio.connect(loaded.address, lane=lane) as session:
        assert session.lane == lane
        n = 0
        async for result in session.map("image::scale", ((X, float(i)) for i in range(MANY))):
            np.testing.assert_array_equal(result, X * n)
            n += 1
        assert n == MANY
        results = session.map("image::boom", [(X,)] * 3, in_flight=2)
        with pytest.raises(oc.KernelError):
            await anext(results)
        with pytest.raises(ValueError, match="in_flight is 0"):
            await anext(session.map("image::boom", [], in_flight=0))


@each_lane
async def test_an_asyncio_map_that_is_closed_cancels_its_calls(
    doors_daemon: RunningDaemon, doors: Doors, first_door: Doors, lane: LaneChoice
):
    async with oc.aio.connect(doors_daemon.address, lane=lane) as session:
        folders = [first_door.folder, *[doors.folder] * 49]
        results = session.map("doors::enter", ((X, f, str(n)) for n, f in enumerate(folders)))
        first_door.let_out()
        assert await anext(results) == "0"
        await results.aclose()
        doors.let_out(50)  # those that the interpreter has already run on
        while (await session.interpreters())[0].calls_in_flight:
            await asyncio.sleep(0.01)


@each_lane
async def test_the_death_of_the_daemon_is_every_tasks_error(
    daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary, lane: LaneChoice
):
    async with oc.aio.connect(daemon.address, lane=lane, wait=0) as session:
        await session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        calls = [session.call("doors::enter", X, doors.folder, str(n)) for n in range(50)]
        waiting = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.to_thread(doors.next_inside)
        daemon.signal(signal.SIGKILL)
        for error in await waiting:
            assert isinstance(error, oc.DaemonUnavailableError)
        with pytest.raises(oc.DaemonUnavailableError):
            await session.call("doors::enter", X, doors.folder, "after")
