"""An interpreter that hangs is found out; one that is merely busy, or not listened to, is not."""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_interpreters import is_recovered, pid_of, worker

X = np.zeros(2)
HEARTBEAT = 0.1

# Its kernels sleep: one with the interpreter lock, which no other thread gets meanwhile, the other
# without. PyDLL keeps the lock during a call of C.
SLEEPS = """\
import ctypes, time
from opdispatch import Library

lib = Library("sleeps", "DEF")
lib.define("locked(Tensor x, int seconds) -> int")
lib.define("unlocked(Tensor x, float seconds) -> int")
lib.impl("locked", lambda x, seconds: ctypes.PyDLL(None).sleep(seconds), "CPU")
lib.impl("unlocked", lambda x, seconds: time.sleep(seconds) or 7, "CPU")
"""


def test_an_interpreter_that_is_stopped_is_lost_and_replaced(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("gate", GATE), interpreter="worker-1")
    once = session.with_options(retry=False)
    with Background(once.ops.gate.wait, X, str(daemon.folder), 1) as call:
        assert wait_for((daemon.folder / "entered-1").exists)
        os.kill(pid_of(session, "worker-1"), signal.SIGSTOP)
        with pytest.raises(oc.InterpreterDiedError) as caught:
            call.result()
    assert caught.value.facts["interpreter"] == "worker-1"
    assert caught.value.facts["operator"] == "gate::wait"
    said = re.search(r"while running gate::wait: no heartbeat for ([0-9.]+) s", str(caught.value))
    assert said is not None
    assert float(said[1]) >= 1.5  # three heartbeats
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    # Its kernel ran when it was stopped, and may have done that itself: it runs by itself now.
    assert wait_for(lambda: session.libraries()[0].interpreters == ("worker-1",))
    assert session.check_invariants() == []


def test_kernel_that_keeps_the_interpreter_lock_is_stopped_at_its_limit_and_no_other(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--heartbeat", str(HEARTBEAT), "--lock-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("sleeps", SLEEPS))
        assert session.ops.sleeps.unlocked(X, 10 * HEARTBEAT) == 7
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())
        with pytest.raises(oc.KernelTimeoutError) as caught:
            session.ops.sleeps.locked(X, 1000)
        assert str(caught.value).startswith(
            "the kernel of sleeps::locked kept the interpreter lock for longer than 0.5 s in "
            "interpreter worker-1, which has been stopped"
        )
        # Which line it was, though no thread of that process could have said so.
        assert wait_for(lambda: "sleeps.py" in daemon.log())


def test_an_import_that_keeps_the_interpreter_lock_has_the_time_of_a_load(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--heartbeat", str(HEARTBEAT), "--load-timeout", "2")
    daemon.expects_errors = True
    locked = "import ctypes\nctypes.PyDLL(None).sleep({})\n"
    with daemon.connect() as session:
        session.load(write_library("slow", locked.format(1) + constant(1, namespace="slow")))
        assert session.ops.slow.get(X) == 1
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())
        with pytest.raises(oc.DeadlineExceededError, match="took longer than 2 s"):
            session.load(write_library("hangs", locked.format(1000)), interpreter="worker-2")
        assert wait_for(lambda: is_recovered(session, {"worker-1": 0, "worker-2": 1}))


def test_daemon_that_was_stopped_itself_loses_no_interpreter(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--heartbeat", str(HEARTBEAT), workers=1)
    with daemon.connect() as session:
        session.load(write_library("sleeps", SLEEPS))
        before = {i.name: i.pid for i in session.interpreters()}
        with Background(session.ops.sleeps.unlocked, X, 10 * HEARTBEAT) as call:
            daemon.signal(signal.SIGSTOP)
            # Nothing tells that time has passed but the clock of another process.
            pass_time(10 * HEARTBEAT)
            daemon.signal(signal.SIGCONT)
            assert call.result() == 7
        assert {i.name: i.pid for i in session.interpreters()} == before
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())


def test_an_interpreter_that_was_held_up_for_two_heartbeats_is_not_lost(
    start_daemon: StartDaemon,
):
    """It says at once that it is alive, and not one heartbeat later."""
    daemon = start_daemon("--heartbeat", "2", workers=1)
    with daemon.connect() as session:
        pid = pid_of(session, "worker-1")

        def age() -> float:
            [worker] = session.interpreters()
            assert worker.heartbeat_age is not None
            return worker.heartbeat_age

        assert wait_for(lambda: age() < 0.2)
        os.kill(pid, signal.SIGSTOP)
        pass_time(4.2)  # a third of the six seconds is left, for a machine that is busy
        os.kill(pid, signal.SIGCONT)
        assert wait_for(lambda: age() < 0.2)
        assert pid_of(session, "worker-1") == pid


def pass_time(seconds: float) -> None:
    """Return when so many seconds have passed here."""
    until = time.monotonic() + seconds
    assert wait_for(lambda: time.monotonic() > until, 60)


def test_the_list_says_when_each_was_heard_of(daemon: RunningDaemon, session: oc.Session):
    def ages() -> list[float]:
        found = [interpreter.heartbeat_age for interpreter in session.interpreters()]
        return [age for age in found if age is not None and age >= 0]

    assert len(ages()) == 2
    assert wait_for(lambda: max(ages()) < 0.5)  # each says so twice a second


def test_the_death_of_an_added_interpreter_is_seen_though_its_connection_lives_on(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    text = (
        "import os, stat, subprocess\nfrom opdispatch import Library\n"
        "lib = Library('heir', 'DEF')\nlib.define('start(Tensor x) -> int')\n"
        "def is_socket(fd):\n"
        "    try:\n        return stat.S_ISSOCK(os.fstat(fd).st_mode)\n"
        "    except OSError:\n        return False\n"
        "def start(x):\n"
        "    sockets = [fd for fd in map(int, os.listdir('/proc/self/fd')) if is_socket(fd)]\n"
        "    return subprocess.Popen(['sleep', '60'], pass_fds=sockets).pid\n"
        "lib.impl('start', start, 'CPU')\n"
    )
    # On a port: one that is killed leaves no socket behind.
    with worker(daemon, "--name", "extra", "--listen", "127.0.0.1:0") as process:
        assert wait_for(lambda: len(session.interpreters()) == 3)
        session.load(write_library("heir", text), interpreter="extra")
        child = session.ops.heir.start(X)
        try:
            process.kill()
            assert wait_for(lambda: len(session.interpreters()) == 2)
            moved = ("worker-1",)
            assert wait_for(lambda: session.libraries()[0].interpreters == moved)
            assert child in daemon.processes()
        finally:
            os.kill(child, signal.SIGKILL)
    log = [record["message"] for record in daemon.log_records()]
    assert any("interpreter extra" in text and "its process has ended" in text for text in log)
