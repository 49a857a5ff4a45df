"""Interpreters that users start look for a daemon that vanishes, and say hello again."""

from __future__ import annotations

import os
import re
import signal

import numpy as np

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, wait_for
from tests.service.test_interpreters import pid_of, worker
from tests.waits import LONGEST_WAIT

X = np.zeros(2)


def held(session: oc.Session) -> list[tuple[str, int, list[str]]]:
    """Return name, process and libraries of every interpreter that is there now."""
    return [(each.name, each.pid, sorted(each.libraries)) for each in session.interpreters()]


def test_interpreter_joins_the_next_daemon_after_a_kill(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=0)
    with worker(first, "--name", "extra") as process:
        with first.connect() as session:
            assert wait_for(lambda: len(session.interpreters()) == 1)
            session.load(write_library("const", constant(1)))
            session.load(write_library("gate", GATE))
            with Background(session.ops.gate.wait, X, str(first.folder), 1):
                assert wait_for((first.folder / "entered-1").exists)
                first.signal(signal.SIGKILL)
                first.wait()
                second = start_daemon(workers=0)
                with second.connect() as session:
                    # What it held for the first daemon is gone from it, though a kernel is
                    # still running; what the journal has is loaded anew.
                    restored = [("extra", process.pid, ["const v1", "gate v1"])]
                    assert wait_for(lambda: held(session) == restored)
                    assert session.ops.const.get(X) == 1
                    session.load(write_library("const", constant(2)))
                    assert session.ops.const.get(X) == 2
                    (first.folder / "open").touch()
                    assert session.ops.gate.wait(X, str(first.folder), 3) == 3
                    assert session.check_invariants() == []
        process.terminate()
        _, errors = process.communicate(timeout=LONGEST_WAIT)
        assert process.returncode == 0
        assert b"looking for it again" in errors


def test_one_that_hung_says_hello_again_when_it_wakes_up(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--heartbeat", "0.1", workers=1)
    with daemon.connect() as session, worker(daemon) as process:
        assert wait_for(lambda: len(session.interpreters()) == 2)
        assert pid_of(session, "worker-2") == process.pid
        session.load(write_library("const", constant(1)), interpreter="worker-2")
        process.send_signal(signal.SIGSTOP)
        try:
            assert wait_for(lambda: len(session.interpreters()) == 1)
            moved = ("worker-1",)
            assert wait_for(lambda: session.libraries()[0].interpreters == moved)
            assert session.ops.const.get(X) == 1
        finally:
            process.send_signal(signal.SIGCONT)
        assert wait_for(lambda: len(session.interpreters()) == 2)
        assert pid_of(session, "worker-2") == process.pid
        # Nothing of the time before is left in it.
        session.unload("const")
        session.load(write_library("const", constant(2)), interpreter="worker-2")
        assert session.ops.const.get(X) == 2
        assert session.check_invariants() == []


def test_interpreter_gives_up_when_no_daemon_comes(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0)
    with daemon.connect() as session, worker(daemon, "--reconnect", "0.5") as process:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        _, errors = process.communicate(timeout=LONGEST_WAIT)
        assert process.returncode == 1
        last = errors.decode().splitlines()[-1]
        # Its last attempt found no daemon, or met the daemon's last moment.
        said = rf"opdispatch: (no daemon answers at|the connection to) {re.escape(daemon.address)} "
        assert re.match(said, last)


def test_interpreter_does_not_look_for_a_daemon_with_reconnect_0(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0)
    with daemon.connect() as session, worker(daemon, "--reconnect", "0") as process:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.wait()
        _, errors = process.communicate(timeout=LONGEST_WAIT)
        assert process.returncode == 1
        assert b"looking for it" not in errors


def test_interpreter_can_be_stopped_while_it_reconnects(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0)
    with daemon.connect() as session, worker(daemon) as process:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        assert wait_for(lambda: b"looking for it again" in process.errors())
        process.terminate()
        assert process.wait(LONGEST_WAIT) == 0
