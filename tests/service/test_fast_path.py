"""Calls through the daemon of a kind that it knows, which it forwards without a task for each."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.raw_lane import raw_lane
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
LANES: list[LaneChoice] = ["local", "stream"]
OVERLOADS = """\
from opdispatch import Library

lib = Library("over", "DEF")
lib.define("get(Tensor x) -> int")
lib.define("get.to(Tensor x, str device) -> int")
lib.impl("get", lambda x: 1, "CPU")
lib.impl("get.to", lambda x, device: 2, "CPU")
"""

each_lane = pytest.mark.parametrize("lane", LANES)


def make_known(session: oc.Session, doors: Doors) -> np.ndarray:
    """One call of each kind, so that the daemon knows them; an argument for the next."""
    x = np.zeros(2)
    for call in (session.ops.doors.enter, session.ops.doors.enter_):
        doors.let_out()
        call(x, doors.folder, "first")
        assert doors.next_inside() == "first"
    return np.zeros(2)


def is_refused(session: oc.Session) -> bool:
    """Whether the daemon takes no new calls; what there is not may be asked for at any time."""
    try:
        session.call("no::such")
    except (oc.RefusedError, oc.DaemonUnavailableError):
        return True
    except oc.OperatorNotFoundError:
        return False
    return False


@each_lane
def test_one_whose_interpreter_dies_runs_again_if_it_writes_to_nothing(
    daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary, lane: LaneChoice
):
    daemon.expects_errors = True
    with daemon.connect(lane=lane, direct=False) as session:
        session.load(write_library("doors", door_library("doors")), interpreters=2)
        x = make_known(session, doors)
        pids = {interpreter.name: interpreter.pid for interpreter in session.interpreters()}
        with (
            Background(session.ops.doors.enter, x, doors.folder, "reads") as reads,
            Background(session.ops.doors.enter_, x, doors.folder, "writes") as writes,
        ):
            assert {doors.next_inside(), doors.next_inside()} == {"reads", "writes"}
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(oc.InterpreterDiedError, match="SIGKILL") as died:
                writes.result()
            assert died.value.facts["operator"] == "doors::enter_"
            assert doors.next_inside() == "reads"
            doors.let_out()
            assert reads.result() == "reads"
        np.testing.assert_array_equal(x, [0, 0])
        assert session.check_invariants() == []


NESTING = """\
from opdispatch import Library, ops

max_concurrency = 2
lib = Library("outer", "DEF")
lib.define("go(Tensor x, str folder, str label) -> str")
lib.define("go_(Tensor(a!) self, str folder, str label) -> Tensor(a!)")
lib.impl("go", lambda x, folder, label: ops.doors.enter(x, folder, label), "CPU")
lib.impl("go_", lambda x, folder, label: ops.doors.enter_(x, folder, label), "CPU")
"""


def test_one_of_a_kernel_whose_interpreter_dies_runs_again_if_it_writes_to_nothing(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("outer", NESTING), interpreter="worker-1")
        session.load(write_library("doors", door_library("doors")), interpreters=2)
        outer, x = session.ops.outer, np.zeros(2)
        for call in (outer.go, outer.go_):
            doors.let_out()
            call(x, doors.folder, "first")
            assert doors.next_inside() == "first"
        [doors_library] = [each for each in session.libraries() if each.name == "doors"]
        pids = {i.pid for i in session.interpreters() if i.name in doors_library.interpreters}
        with (
            Background(outer.go, x, doors.folder, "reads") as reads,
            Background(outer.go_, np.zeros(2), doors.folder, "writes") as writes,
        ):
            assert {doors.next_inside(), doors.next_inside()} == {"reads", "writes"}
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(oc.KernelError, match=r"InterpreterDiedError: .* SIGKILL"):
                writes.result()
            assert doors.next_inside() == "reads"
            doors.let_out()
            assert reads.result() == "reads"
        assert session.check_invariants() == []


@each_lane
def test_one_that_is_late_or_cancelled_is_over_for_its_caller(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary, lane: LaneChoice
):
    daemon = start_daemon(workers=1)
    with (
        daemon.connect(lane=lane, direct=False) as session,
        daemon.connect(lane=lane, direct=False, timeout=0.3) as impatient,
    ):
        session.load(write_library("doors", door_library("doors", max_concurrency=2)))
        x = make_known(session, doors)
        with pytest.raises(oc.DeadlineExceededError):
            impatient.ops.doors.enter(x, doors.folder, "late")
        assert doors.next_inside() == "late"
        cancelled = session.submit("doors::enter", x, doors.folder, "cancelled")
        assert doors.next_inside() == "cancelled"
        assert cancelled.cancel()
        # Their kernels have the library's places until they end.
        waits = session.submit("doors::enter", x, doors.folder, "waits")
        assert wait_for(lambda: session.interpreters()[0].calls_queued == 1)
        assert doors.no_other_is_inside()
        doors.let_out(3)
        assert waits.result(LONGEST_WAIT) == "waits"
        assert wait_for(lambda: session.interpreters()[0].calls_in_flight == 0)
        assert session.check_invariants() == []


def test_one_that_takes_too_long_is_stopped(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--kernel-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    with daemon.connect(direct=False) as session:
        session.load(write_library("doors", door_library("doors")))
        x = make_known(session, doors)
        with pytest.raises(oc.KernelTimeoutError):
            session.ops.doors.enter(x, doors.folder, "hangs")
        doors.next_inside()
        doors.let_out()
        assert session.ops.doors.enter(x, doors.folder, "again") == "again"


def test_the_end_of_the_daemon_waits_for_them(
    daemon: RunningDaemon, doors: Doors, write_library: WriteLibrary
):
    with daemon.connect(direct=False, wait=0) as session:
        session.load(write_library("doors", door_library("doors")))
        x = make_known(session, doors)
        with Background(session.ops.doors.enter, x, doors.folder, "last") as last:
            assert doors.next_inside() == "last"
            daemon.signal(signal.SIGTERM)
            assert wait_for(lambda: is_refused(session))
            doors.let_out()
            assert last.result() == "last"
        assert daemon.wait() == 0


def test_every_one_is_answered_while_interpreters_are_killed(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Many are about to be sent in the moment in which an interpreter is gone.

    Not too many die: each that follows is started later.
    """
    daemon = start_daemon("--quarantine", "0")
    daemon.expects_errors = True
    over = threading.Event()

    def call() -> int:
        answered = 0
        with daemon.connect(direct=False, timeout=60) as session:
            while not over.is_set():
                with contextlib.suppress(oc.InterpreterDiedError):
                    futures = [session.submit("const::get", X) for _ in range(8)]
                    answered += sum(future.result() for future in futures)
        return answered

    with daemon.connect(timeout=60) as session:
        session.load(write_library("const", constant(1)), interpreters=2)
        with Background(call) as one, Background(call) as another:
            for number in range(6):
                ready = [i for i in session.interpreters() if i.pid]
                if ready:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(ready[number % len(ready)].pid, signal.SIGKILL)
                # At the same time as others; then one that is answered, and so one is back.
                session.ops.const.get(X)
            over.set()
            assert one.result() > 0
            assert another.result() > 0
        assert wait_for(lambda: sum(i.calls_in_flight for i in session.interpreters()) == 0)
        assert session.check_invariants() == []
        assert not [record for record in daemon.log_records() if "traceback" in record]


def test_one_that_is_malformed_takes_no_slot_and_is_an_error_of_that_call_alone(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Asked for a route, too, where which of several overloads is meant depends on arguments."""
    daemon = start_daemon(workers=1)
    with daemon.connect(direct=False) as session:
        session.load(write_library("over", OVERLOADS))
        with raw_lane(session.server_info.lane) as lane:
            lane.greet()
            lane.call(1, "over::get", X)
            assert lane.reply().returns
            for number in range(2, 12):
                request = lane.request(number, "over::get", X)
                request.wants_route = True
                request.args[0].tensor.data = b"abc"
                lane.ask(request)
                assert "$.args[0].data has 3 bytes" in lane.reply().error.message
            lane.call(12, "over::get", X)
            assert lane.reply().returns
        assert session.check_invariants() == []


def test_a_route_may_be_asked_for_with_remote_tensors(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("over", OVERLOADS))
        kept = session.put(X)
        with raw_lane(session.server_info.lane) as lane:
            lane.greet()
            request = lane.request(1, "over::get", kept)
            request.wants_route = True
            lane.ask(request)
            assert lane.reply().returns[0].integer == 1
