"""Calls spread over all holders of a kernel, whichever way each of them is reached."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.doors import Doors
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_direct_calls import stopped
from tests.service.test_interpreters import worker
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
IN_FLIGHT = 32
# As good as so many of four: threads that choose at the same moment may choose the same.
LEAST_OF_FOUR = 3.2

# Both say in which process they run; `hold` does so at once, and waits to be let out.
WHERE = """\
import os
import time

from opdispatch import Library

max_concurrency = {max_concurrency}
lib = Library("{name}", "DEF")
lib.define("hold(Tensor x, str folder) -> int")
lib.define("nap(Tensor x) -> int")


def hold(x, folder):
    outside = os.open(os.path.join(folder, "outside"), os.O_RDONLY | os.O_NONBLOCK)
    inside = os.open(os.path.join(folder, "inside"), os.O_WRONLY | os.O_NONBLOCK)
    os.write(inside, b"%d\\n" % os.getpid())
    os.set_blocking(outside, True)
    os.read(outside, 1)
    os.close(inside)
    os.close(outside)
    return os.getpid()


def nap(x):
    time.sleep(0.002)
    return os.getpid()


lib.impl("hold", hold, "CPU")
lib.impl("nap", nap, "CPU")
"""
NEAR, FAR = ("worker-1", "worker-2"), ("far-1", "far-2")
HOLDERS = {"near": NEAR, "far": FAR, "mixed": NEAR + FAR}
# The lane, and the number of the daemon's address: a unix socket, or TCP.
LANES: list[tuple[LaneChoice, int]] = [
    ("auto", 0),
    ("auto", 1),
    ("stream", 0),
    ("stream", 1),
    ("grpc", 0),
    ("grpc", 1),
]


def library(name: str, max_concurrency: int = IN_FLIGHT) -> str:
    return WHERE.format(name=name, max_concurrency=max_concurrency)


class Replicas:
    """A daemon with interpreters of its own and joined ones, and a library for each choice."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        with daemon.connect() as session:
            self.pids = {each.name: each.pid for each in session.interpreters()}
            for name, holders in HOLDERS.items():
                path = daemon.folder / f"{name}.py"
                path.write_text(library(name))
                for holder in holders:
                    session.load(path, interpreter=holder)

    def address(self, number: int) -> str:
        return self.daemon.addresses[number]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    listen = [f"unix://{folder}/daemon.sock", "127.0.0.1:0"]
    daemon = RunningDaemon(folder, workers=len(NEAR), listen=listen)
    try:
        daemon.wait_until_ready()
        with ExitStack() as joined:
            for name in FAR:
                options = ("--name", name, "--listen", "127.0.0.1:0")
                joined.enter_context(worker(daemon, *options))
            with daemon.connect() as session:
                assert wait_for(lambda: len(session.interpreters()) == len(NEAR) + len(FAR))
            yield Replicas(daemon)
    finally:
        daemon.clean_up()


Begin = Callable[[oc.Session, str, Doors], Callable[[], list[int]]]


def by_map(session: oc.Session, operator: str, doors: Doors) -> Callable[[], list[int]]:
    arguments = ((X, doors.folder) for _ in range(IN_FLIGHT))
    results = session.map(operator, arguments, in_flight=IN_FLIGHT)
    return lambda: list(results)


def by_submit(session: oc.Session, operator: str, doors: Doors) -> Callable[[], list[int]]:
    futures = [session.submit(operator, X, doors.folder) for _ in range(IN_FLIGHT)]
    return lambda: [future.result(LONGEST_WAIT) for future in futures]


def by_threads(session: oc.Session, operator: str, doors: Doors) -> Callable[[], list[int]]:
    threads = ThreadPoolExecutor(IN_FLIGHT)
    futures = [threads.submit(session.call, operator, X, doors.folder) for _ in range(IN_FLIGHT)]
    threads.shutdown(wait=False)
    return lambda: [future.result(LONGEST_WAIT) for future in futures]


def check_spread(ran: Sequence[int], pids: Sequence[int]) -> None:
    counts = Counter(ran)
    assert set(counts) == set(pids), counts
    assert len(ran) / max(counts.values()) >= LEAST_OF_FOUR / 4 * len(pids), counts


def spread_of(
    session: oc.Session, operator: str, doors: Doors, begin: Begin = by_submit
) -> list[int]:
    """Where those ran that were all inside at a time."""
    doors.let_out()
    session.call(operator, X, doors.folder)  # from here on, a route may be known
    doors.next_inside()
    wait = begin(session, operator, doors)
    inside = sorted(int(doors.next_inside()) for _ in range(IN_FLIGHT))
    doors.let_out(IN_FLIGHT)
    assert sorted(wait()) == inside
    return inside


@pytest.mark.parametrize("holders", HOLDERS)
@pytest.mark.parametrize(("lane", "number"), LANES)
@pytest.mark.parametrize("begin", [by_map, by_submit, by_threads])
def test_blocking_calls_spread_over_all_replicas(
    replicas: Replicas, doors: Doors, begin: Begin, lane: LaneChoice, number: int, holders: str
):
    pids = [replicas.pids[name] for name in HOLDERS[holders]]
    with oc.connect(replicas.address(number), lane=lane) as session:
        check_spread(spread_of(session, f"{holders}::hold", doors, begin), pids)


@pytest.mark.parametrize("holders", HOLDERS)
@pytest.mark.parametrize(("lane", "number"), LANES)
async def test_asyncio_calls_spread_over_all_replicas(
    replicas: Replicas, doors: Doors, lane: LaneChoice, number: int, holders: str
):
    pids = [replicas.pids[name] for name in HOLDERS[holders]]
    operator = f"{holders}::hold"
    async with oc.aio.connect(replicas.address(number), lane=lane) as session:
        doors.let_out()
        await session.call(operator, X, doors.folder)
        doors.next_inside()
        calls = [
            asyncio.create_task(session.call(operator, X, doors.folder)) for _ in range(IN_FLIGHT)
        ]
        inside = [int(await asyncio.to_thread(doors.next_inside)) for _ in range(IN_FLIGHT)]
        doors.let_out(IN_FLIGHT)
        assert sorted(await asyncio.gather(*calls)) == sorted(inside)
    check_spread(inside, pids)


def test_calls_of_an_idle_session_go_where_it_needs_no_daemon(replicas: Replicas):
    near = {replicas.pids[name] for name in NEAR}
    with oc.connect(replicas.address(0), timeout=LONGEST_WAIT) as session:
        session.call("mixed::nap", X)
        with stopped(replicas.daemon):
            assert {session.call("mixed::nap", X) for _ in range(8)} == near


def test_sessions_with_one_call_each_use_all_replicas(replicas: Replicas):
    """They are idle each time; interpreters tell them that others are not."""
    path = replicas.daemon.folder / "single.py"
    path.write_text(library("single", max_concurrency=1))
    with replicas.daemon.connect() as session:
        session.load(path, interpreters=len(replicas.pids))

    def call_often(number: int) -> list[int]:
        with oc.connect(replicas.address(0)) as session:
            return [session.call("single::nap", X) for _ in range(20)]

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        ran = [pid for some in threads.map(call_often, range(IN_FLIGHT)) for pid in some]
    counts = Counter(ran)
    assert set(counts) == {*replicas.pids.values()}
    assert len(ran) / max(counts.values()) >= 2, counts
    with replicas.daemon.connect() as session:
        session.unload("single")


def test_replicas_that_join_later_are_used_by_sessions_that_have_a_route(
    replicas: Replicas, doors: Doors
):
    path = replicas.daemon.folder / "later.py"
    path.write_text(library("later"))
    with replicas.daemon.connect() as session:
        session.load(path, interpreter="worker-1")
        assert set(spread_of(session, "later::hold", doors)) == {replicas.pids["worker-1"]}
        session.load(path, interpreter="far-1")
        pids = [replicas.pids[name] for name in ("worker-1", "far-1")]
        check_spread(spread_of(session, "later::hold", doors), pids)
        session.scale("later", 1)
        session.scale("later", len(replicas.pids))  # some may be leaving still: they stay
        check_spread(spread_of(session, "later::hold", doors), [*replicas.pids.values()])
        session.unload("later")


def test_a_version_that_is_brought_back_is_used_in_all_its_interpreters(
    replicas: Replicas, doors: Doors
):
    path = replicas.daemon.folder / "again.py"
    with replicas.daemon.connect() as session:
        for text in ("", "# other\n"):
            path.write_text(library("again") + text)
            session.load(path, interpreters=len(replicas.pids))
            check_spread(spread_of(session, "again::hold", doors), [*replicas.pids.values()])
        session.rollback("again")
        check_spread(spread_of(session, "again::hold", doors), [*replicas.pids.values()])
        session.unload("again")


def test_others_take_the_calls_of_an_interpreter_that_has_died(replicas: Replicas, doors: Doors):
    path = replicas.daemon.folder / "fewer.py"
    path.write_text(library("fewer"))
    options = ("--name", "mortal", "--listen", "127.0.0.1:0")
    near = [replicas.pids[name] for name in NEAR]
    with replicas.daemon.connect() as session, worker(replicas.daemon, *options) as mortal:
        assert wait_for(lambda: len(session.interpreters()) == len(replicas.pids) + 1)
        for name in (*NEAR, "mortal"):
            session.load(path, interpreter=name)
        session.scale("fewer", 3)
        check_spread(spread_of(session, "fewer::hold", doors), [*near, mortal.pid])
        os.kill(mortal.pid, signal.SIGKILL)
        assert wait_for(lambda: len(session.interpreters()) == len(replicas.pids))
        ran = spread_of(session, "fewer::hold", doors)
        assert mortal.pid not in ran
        assert {*near} <= {*ran}
        session.unload("fewer")
