"""``serve --take-over``: another daemon takes the place of one that runs, and calls go on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_client.endpoint import LaneChoice
from opdispatch_server.daemon.state.folder import StateFolder, read_take_over_socket
from opdispatch_server.daemon.state.journal_format import FORMAT
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.raw_lane import RawLane
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
# Between the calls of a thread, in seconds.
PACE = 0.002
# Does not wait long for a daemon that does not answer, in seconds.
IMPATIENT = {"opdispatch_server.daemon.take_over._ANSWER_SECONDS": 0.5}
WRITES = """\
from opdispatch import Library

lib = Library("writes", "DEF")
lib.define("add_(Tensor(a!) self, float by) -> Tensor(a!)")


def add_(self, by):
    self += by
    return self


lib.impl("add_", add_, "CPU")
"""


class Gate:
    """A FIFO, at which imports of a library wait while it is shut; one time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.text = (
            f"import os\nif os.path.exists({str(path)!r}):\n    open({str(path)!r}).read()\n"
        )
        """The beginning of the library."""

    def shut(self) -> None:
        os.mkfifo(self._path)
        # For both ways: a reader waits until this end, the only one that may write, is closed.
        self._end = os.open(self._path, os.O_RDWR)

    def open(self) -> None:
        self._path.unlink()
        os.close(self._end)


@contextlib.contextmanager
def under_load(call: Callable[[], object], threads: int) -> Iterator[list[float]]:
    """Call in threads for as long as the block runs; yield the times of answers, of all threads.

    Raises what a call raised.
    """
    over = threading.Event()
    answered: list[float] = []

    def run() -> None:
        # Paced: callers that never pause would keep the machine from starting daemons.
        while not over.wait(PACE):
            call()
            answered.append(time.monotonic())

    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(Background(run)) for _ in range(threads)]
        try:
            assert wait_for(lambda: len(answered) > 10)
            yield answered
        finally:
            over.set()
        for each in running:
            each.result()


def largest_gap(answered: list[float]) -> float:
    times = sorted(answered)
    return max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_calls_go_on_while_one_daemon_after_the_other_takes_over(
    start_daemon: StartDaemon, write_library: WriteLibrary, lane: LaneChoice
):
    rounds = 20 if lane == "local" else 3
    daemon = start_daemon(workers=1)
    with daemon.connect(lane=lane) as session, daemon.connect(lane=lane, direct=False) as through:
        session.load(write_library("const", constant(0)))
        session.load(write_library("writes", WRITES))

        def call() -> None:
            assert session.ops.const.get(X) >= 0
            assert through.ops.const.get(X) >= 0
            assert through.submit("const::get", X).result(60) >= 0
            # gRPC leaves open whether a request has begun that its server was about to read.
            if lane != "grpc":
                assert session.ops.writes.add_(np.zeros(2), 1.0).tolist() == [1, 1]

        rounds_of: list[tuple[float, float]] = []  # when each began, and its daemon was ready
        with under_load(call, threads=3) as answered:
            for number in range(1, rounds + 1):
                begun = time.monotonic()
                after = start_daemon("--take-over", workers=1)
                rounds_of.append((begun, time.monotonic()))
                assert daemon.wait() == 0
                assert session.refresh_server_info().pid == after.process.pid
                session.load(write_library("const", constant(number)))
                assert session.ops.const.get(X) == number
                daemon = after
        ends = [*(begun for begun, _ in rounds_of[1:]), time.monotonic()]
        gaps = [
            largest_gap([begun, *(at for at in answered if begun <= at <= end), end])
            for (begun, _), end in zip(rounds_of, ends, strict=True)
        ]
        print(f"{lane}: {len(answered)} rounds of calls, largest gap {max(gaps) * 1000:.0f} ms")
        # A restart leaves a gap of a whole start at least, in every round. A busy machine may
        # hold everything up for as long, but not in most of them.
        starts = [ready - begun for begun, ready in rounds_of]
        assert sum(gap < start for gap, start in zip(gaps, starts, strict=True)) > rounds / 2
        assert session.lane == lane


def test_a_session_meets_the_daemon_that_has_taken_over_without_waiting(
    start_daemon: StartDaemon, write_library: WriteLibrary, monkeypatch: pytest.MonkeyPatch
):
    first = start_daemon(workers=1)
    pauses: list[float] = []
    pause_after = DaemonWait.pause_after

    def noted(self: DaemonWait, error: Exception, *, is_repeatable: bool = False) -> float:
        pauses.append(pause_after(self, error, is_repeatable=is_repeatable))
        return pauses[-1]

    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        monkeypatch.setattr(DaemonWait, "pause_after", noted)
        with under_load(lambda: session.ops.const.get(X), threads=1):
            start_daemon("--take-over", workers=1)
            assert first.wait() == 0
    assert pauses[0] == 0
    assert len(pauses) <= 3  # one, unless the old daemon's connection outlives its refusal


def test_a_tcp_port_is_taken_over_and_shared_with_nothing_else(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1, listen=["127.0.0.1:0"])
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        with under_load(lambda: session.ops.const.get(X), threads=2):
            second = start_daemon("--take-over", workers=1, listen=[first.address])
            assert second.address == first.address
            assert first.wait() == 0
        assert session.ops.const.get(X) == 1
    with pytest.raises(RuntimeError, match="already listens"):
        start_daemon("--state", str(first.folder / "other"), workers=0, listen=[second.address])


def test_a_call_that_is_running_ends_where_it_began(
    start_daemon: StartDaemon, write_library: WriteLibrary, doors: Doors
):
    first = start_daemon(workers=1)
    with first.connect(direct=False) as session:
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        with Background(session.ops.doors.enter_, np.zeros(2), doors.folder, "old") as old:
            assert doors.next_inside() == "old"
            start_daemon("--take-over", workers=1)
            with Background(session.ops.doors.enter, X, doors.folder, "new") as new:
                assert doors.next_inside() == "new"
                doors.let_out(2)
                assert new.result() == "new"
                assert old.result().tolist() == [1, 1]
        assert first.wait() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_ends_while_it_takes_over_leaves_the_other_as_it_was(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, how: signal.Signals
):
    gate = Gate(tmp_path / "gate")
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", gate.text + constant(1)))
        gate.shut()
        second = RunningDaemon(tmp_path, "--take-over", workers=1)
        try:
            assert wait_for(lambda: "take_over_begun" in first.log())
            assert session.ops.const.get(X) == 1
            path = write_library("other", constant(2, namespace="other"))
            with Background(session.load, path) as load:  # waits, and is not lost
                second.signal(how)
                second.wait()
                assert load.result().version == 1
            assert session.ops.other.get(X) == 2
            assert session.refresh_server_info().pid == first.process.pid
        finally:
            gate.open()
            second.expects_errors = True
            second.clean_up()
        with first.connect() as another:
            assert another.ops.const.get(X) == 1
        third = start_daemon("--take-over", workers=1)
        assert first.wait() == 0
        assert session.refresh_server_info().pid == third.process.pid
        assert session.ops.other.get(X) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_whose_other_ends_half_way_goes_on_by_itself(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, how: signal.Signals
):
    gate = Gate(tmp_path / "gate")
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", gate.text + constant(1)))
        gate.shut()
        with Background(start_daemon, "--take-over", workers=1) as starting:
            assert wait_for(lambda: "take_over_begun" in first.log())
            first.signal(how)
            first.wait()
            gate.open()
            second = starting.result()
        assert session.ops.const.get(X) == 1
        assert session.refresh_server_info().pid == second.process.pid


def test_one_that_hangs_is_not_taken_over(start_daemon: StartDaemon):
    first = start_daemon(workers=1)
    first.signal(signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match="cannot be taken over: it has not answered for"):
            start_daemon("--take-over", workers=1, constants=IMPATIENT)
    finally:
        first.signal(signal.SIGCONT)
    with first.connect() as session:
        assert session.server_info.pid == first.process.pid


def test_with_no_daemon_there_it_is_an_ordinary_start(start_daemon: StartDaemon):
    first = start_daemon("--take-over", workers=1)
    first.signal(signal.SIGKILL)
    first.wait()
    second = start_daemon("--take-over", workers=1)
    with second.connect() as session:
        assert session.server_info.pid == second.process.pid


def test_a_daemon_of_an_older_version_is_refused(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    path = read_take_over_socket(first.folder / "state")
    with socket.socket(socket.AF_UNIX) as older:
        older.settimeout(LONGEST_WAIT)
        older.connect(str(path))
        older.sendall(json.dumps({"format": FORMAT - 1}).encode() + b"\n")
        answer = json.loads(older.makefile().readline())
    assert answer == {"error": "it is of a newer version, and so is its journal"}
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1


def test_one_that_says_nothing_of_take_overs_is_not_taken_over(
    start_daemon: StartDaemon, tmp_path: Path
):
    older = StateFolder(tmp_path / "state")  # as one of an older version has it
    try:
        with pytest.raises(RuntimeError, match="it has not started yet, or is of an older version"):
            start_daemon("--take-over", workers=0)
    finally:
        older.close()


def test_a_client_that_never_leaves_does_not_keep_the_daemon_from_ending(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        lane = RawLane(session.server_info.lane)  # as one of an older version
    lane.greet()
    answers = 0

    def call_on_and_on() -> None:
        nonlocal answers
        with contextlib.suppress(OSError):
            for number in itertools.count(1):
                lane.call(number, "const::get", X)
                if lane.hear() is None:
                    return
                answers += 1

    with contextlib.closing(lane.socket), Background(call_on_and_on) as calling:
        start_daemon("--take-over", workers=1)
        assert first.wait() == 0
        calling.result()
    assert answers


@pytest.mark.parametrize("lane", ["local", "grpc"])
def test_remote_tensors_end_with_the_daemon_and_the_error_says_so(
    start_daemon: StartDaemon, write_library: WriteLibrary, lane: LaneChoice
):
    first = start_daemon(workers=1)
    with first.connect(lane=lane) as session:
        session.load(write_library("writes", WRITES))
        kept = session.call("writes::add_", session.put(X), 1.0, remote=True)
        start_daemon("--take-over", workers=1)
        assert first.wait() == 0
        with pytest.raises(oc.RemoteValueGoneError, match="the daemon that kept it has ended"):
            kept.numpy()


def test_a_library_that_does_not_load_there_leaves_the_daemon_that_serves_it(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    flag = tmp_path / "flag"
    text = f"import os\nif os.path.exists({str(flag)!r}):\n    raise OSError('not here')\n"
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", text + constant(1)))
        flag.touch()
        second = RunningDaemon(tmp_path, "--take-over", workers=1)
        second.expects_errors = True
        try:
            assert second.wait() == 1
        finally:
            second.clean_up()
        assert (
            "opdispatch: library 'const' does not load here, so the daemon that serves it continues"
            in second.log()
        )
        assert session.ops.const.get(X) == 1
        assert session.refresh_server_info().pid == first.process.pid
        session.load(write_library("other", constant(2, namespace="other")))
        assert session.ops.other.get(X) == 2
