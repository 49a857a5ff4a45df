"""Kernels that run for too long are stopped with their interpreter, and only their callers know."""

from __future__ import annotations

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.daemon.calls import alone_runs
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.libraries import constant
from tests.service.running_daemon import Background, wait_for

X = np.zeros(2)


def restarts(session: oc.Session) -> dict[str, int]:
    return {i.name: i.restarts for i in session.interpreters()}


def test_only_the_callers_of_a_kernel_that_takes_too_long_see_an_error(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    # Calls that were lost with it run alone, and others come in after so long, in seconds.
    constants = {f"{alone_runs.__name__}.PATIENCE": 0.2}
    daemon = start_daemon("--kernel-timeout", "3", workers=1, constants=constants)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("slow", door_library("slow")))
        session.load(write_library("busy", door_library("busy", max_concurrency=2)))
        slow, busy = session.ops.slow, session.ops.busy
        with Background(slow.enter, X, doors.folder, "slow") as hangs:
            assert doors.next_inside() == "slow"
            x = np.zeros(2)
            with (
                Background(slow.enter_, x, doors.folder, "queued") as queued,
                Background(busy.enter, X, doors.folder, "reads") as reads,
                Background(busy.enter_, x, doors.folder, "writes") as writes,
            ):
                assert {doors.next_inside(), doors.next_inside()} == {"reads", "writes"}
                with pytest.raises(oc.KernelTimeoutError) as caught:
                    hangs.result()
                assert str(caught.value).startswith(
                    "the kernel of slow::enter ran for longer than 3 s in interpreter worker-1, "
                    "which has been stopped"
                )
                assert caught.value.facts["operator"] == "slow::enter"
                assert caught.value.facts["interpreter"] == "worker-1"
                with pytest.raises(oc.InterpreterDiedError) as died:
                    writes.result()
                assert "its kernel of slow::enter ran for longer than 3 s" in str(died.value)
                assert "the operator writes to its arguments" in died.value.hint
                assert died.value.facts["culprit"] == "slow::enter"
                # The one that had not started, though it writes, and the one that only reads.
                assert {doors.next_inside(), doors.next_inside()} == {"queued", "reads"}
                doors.let_out(2)
                np.testing.assert_array_equal(queued.result(), [1, 1])
                assert reads.result() == "reads"
        assert restarts(session) == {"worker-1": 1}
        assert session.check_invariants() == []


def test_a_kernel_is_stopped_though_its_caller_has_gone(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary
):
    daemon = start_daemon("--kernel-timeout", "1", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("slow", door_library("slow")))
        with daemon.connect(timeout=0.5) as impatient, pytest.raises(oc.DeadlineExceededError):
            impatient.ops.slow.enter(X, doors.folder, "hangs")
        doors.next_inside()
        with Background(session.ops.slow.enter, X, doors.folder, "next") as work:
            assert doors.next_inside() == "next"
            doors.let_out()
            assert work.result() == "next"
        assert restarts(session) == {"worker-1": 1}


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
def test_the_time_of_nested_calls_is_not_that_of_the_kernel_that_makes_them(
    start_daemon: StartDaemon, doors: Doors, write_library: WriteLibrary, is_known: bool
):
    daemon = start_daemon("--kernel-timeout", "1")
    daemon.expects_errors = True
    outer = (
        "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
        "lib.define('go(Tensor x, str folder) -> str')\n"
        "def go(x, folder):\n"
        "    try:\n"
        "        return ops.slow.enter(x, folder, 'nested')\n"
        "    except TimeoutError as error:\n"
        "        return f'{type(error).__name__} of {error.facts[\"operator\"]}'\n"
        "lib.impl('go', go, 'CPU')\n"
    )
    with daemon.connect() as session:
        session.load(write_library("slow", door_library("slow")), interpreter="worker-2")
        session.load(write_library("outer", outer), interpreter="worker-1")
        if is_known:  # the daemon forwards it without a task then
            doors.let_out()
            assert session.ops.outer.go(X, doors.folder) == doors.next_inside()
        assert session.ops.outer.go(X, doors.folder) == "KernelTimeoutError of slow::enter"
        assert doors.next_inside() == "nested"
        expected = {"worker-1": 0, "worker-2": 1}
        assert wait_for(lambda: restarts(session) == expected)
        assert wait_for(lambda: all(library.active for library in session.libraries()))


def test_quick_kernels_never_notice_the_limit(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--kernel-timeout", "5", workers=1)
    with daemon.connect() as session:
        session.load(write_library("const", constant(5)))
        assert {session.ops.const.get(X) for _ in range(50)} == {5}
        assert restarts(session) == {"worker-1": 0}
