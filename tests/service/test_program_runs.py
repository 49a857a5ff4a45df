"""Programs and what runs beside them: slots, time limits, interpreters and libraries that go."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import opdispatch as od
import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import MATH
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_interpreters import pid_of
from tests.service.test_programs import run

SHARED_WORKERS = 1
X = np.arange(4.0)


def test_a_program_takes_the_slots_of_its_libraries(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    """`calc` runs two at a time, `more` one, however they are called."""
    counting = MATH.replace("math", "calm").replace("max_concurrency = 2", "max_concurrency = 1")
    with lent_daemon.connect() as session:
        session.load(write_library("calc", MATH))
        session.load(write_library("calm", counting))

        def call(number: int) -> tuple[int, int]:
            if number % 3 == 0:
                return int(session.ops.math.busiest(X)[1]), 1
            if number % 3 == 1:
                return 1, int(session.ops.calm.busiest(X)[1])
            with session.program() as p:
                first = p.ops.math.busiest(X)
                p.output(first[1], p.ops.calm.busiest(first[0])[1])
            return p.result

        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(call, range(240)))
        assert max(one for one, _ in found) <= 2
        assert max(other for _, other in found) == 1
        assert session.check_invariants() == []


def test_a_program_that_takes_too_long_is_stopped_as_a_whole(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--kernel-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("calc", MATH))

        def record(p: oc.Program) -> None:
            p.ops.math.hold(p.ops.math.same(X), str(daemon.folder))

        with pytest.raises(oc.KernelTimeoutError, match="a program of 2 steps ran for longer"):
            run(session, record)


@pytest.mark.parametrize("write", [True, False])
def test_a_program_whose_interpreter_dies_runs_again_unless_it_writes(
    start_daemon: StartDaemon, write_library: WriteLibrary, write: bool
):
    daemon = start_daemon()
    daemon.expects_errors = True
    folder = daemon.folder
    with daemon.connect() as session:
        session.load(write_library("calc", MATH), interpreters=2)

        def hold() -> object:
            with session.program() as p:
                value = p.ops.math.hold(X, str(folder))
                p.output(p.ops.math.iadd_(value, X) if write else value)
            return p.result

        with Background(hold) as call:
            assert wait_for((folder / "entered").exists)
            (folder / "entered").unlink()
            [name] = [each.name for each in session.interpreters() if each.calls_in_flight]
            os.kill(pid_of(session, name), signal.SIGKILL)
            if write:
                with pytest.raises(oc.InterpreterDiedError, match="a program of 2 steps"):
                    call.result()
                assert not (folder / "entered").exists()
            else:
                assert wait_for((folder / "entered").exists)
                (folder / "open").touch()
                assert call.result().tolist() == (X + 1).tolist()


def test_a_library_that_is_replaced_serves_programs_that_are_known(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    with lent_daemon.connect() as session:
        session.load(write_library("calc", MATH))

        @session.as_program
        def same(x):
            return session.ops.math.same(x)

        assert same(X).tolist() == X.tolist()
        newer = MATH.replace('"same", lambda x: x', '"same", lambda x: -x')
        session.load(write_library("calc", newer))
        assert same(X).tolist() == (-X).tolist()
        session.unload("calc")
        with pytest.raises(oc.OperatorNotFoundError, match="math::same"):
            same(X)


def test_a_program_waits_for_a_library_that_has_lost_its_only_interpreter(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("calc", MATH))

        @session.as_program
        def same(x):
            return session.ops.math.same(x)

        for _ in range(2):
            os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
            assert wait_for(lambda: session.libraries()[0].state == "waiting")
            assert same(X).tolist() == X.tolist()
        assert session.check_invariants() == []


def test_the_callers_local_keys_count_for_every_step(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    text = """\
from opdispatch import Library

lib = Library("keys", "DEF")
lib.define("which(Tensor x) -> Tensor")
lib.impl("which", lambda x: x * 0, "CPU")
lib.impl("which", lambda x: x * 0 + 1, "PythonTLSSnapshot")
"""
    with lent_daemon.connect() as session:
        session.load(write_library("keys", text))

        @session.as_program
        def twice(x):
            return session.ops.keys.which(session.ops.keys.which(x))

        assert twice(X).tolist() == [0] * 4
        with od.IncludeDispatchKeyGuard(od.DispatchKey.PythonTLSSnapshot):
            assert twice(X).tolist() == [1] * 4
