"""Interpreters are emptied, and put in use again."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_scaling import WHERE, holders, pid_of, under_load

X = np.zeros(2)
CALLERS = 3


def test_an_interpreter_is_drained_under_load_and_used_again(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)), interpreter="worker-1")
        session.load(write_library("const", constant(2)), interpreter="worker-1")
        session.load(write_library("gate", GATE), interpreter="worker-1")
        folder = str(daemon.folder)
        with (
            under_load(daemon, "const::get") as load,
            Background(session.ops.gate.wait, X, folder, 3) as call,
        ):
            assert wait_for((daemon.folder / "entered-3").exists)
            with daemon.connect(timeout=2) as impatient:
                assert impatient.drain("worker-1").state == "draining"
            assert "worker-1" not in holders(session, "const")
            with pytest.raises(oc.RefusedError, match="worker-1 is being drained"):
                session.load(write_library("more", constant(3, namespace="m")), on="worker-1")
            where = session.load(write_library("where", WHERE), interpreters=3).interpreters
            assert sorted(where) == ["worker-2", "worker-3"]
            (daemon.folder / "open").touch()
            assert call.result() == 3
            drained = session.drain("worker-1")
            assert (drained.state, drained.libraries) == ("drained", ())
        assert load.errors == []
        assert session.drain("worker-1", undo=True).state in ("ready", "loading")
        # What has wanted three interpreters gets its third.
        assert wait_for(lambda: len(holders(session, "where")) == 3)
        active = session.unload("const", version=2)
        assert active is not None
        assert session.ops.const.get(X) == 1
        assert session.check_invariants() == []
        with pytest.raises(oc.InterpreterNotFoundError, match="no interpreter named 'missing'"):
            session.drain("missing")


def test_drain_waits_for_imports_no_longer_than_its_timeout(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=2)
    closed = daemon.folder / "closed"
    waits = (
        f"import pathlib, time\nwhile pathlib.Path({str(closed)!r}).exists(): time.sleep(0.01)\n"
    )
    with daemon.connect() as session:
        session.load(write_library("const", waits + constant(1)), interpreter="worker-1")
        closed.touch()
        with daemon.connect(timeout=2) as impatient:
            assert impatient.drain("worker-1").state == "draining"
        assert session.ops.const.get(X) == 1
        closed.unlink()
        assert session.drain("worker-1").state == "drained"
        assert holders(session, "const") == ("worker-2",)
        assert session.ops.const.get(X) == 1


def test_an_interpreter_that_is_started_again_is_still_being_drained(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(1)), interpreter="worker-1")
    assert session.drain("worker-1").state == "drained"
    assert holders(session, "const") == ("worker-2",)
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    assert wait_for(lambda: [i.name for i in session.interpreters()] == ["worker-2"])
    assert wait_for(lambda: len(session.interpreters()) == 2)
    assert session.interpreters()[0].state == "drained"
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    assert wait_for(lambda: [i.name for i in session.interpreters()] == ["worker-2"])
    # Unless it has come back since.
    assert session.drain("worker-1", undo=True).state in ("away", "ready")
    assert wait_for(lambda: len(session.interpreters()) == 2)
    assert session.interpreters()[0].state == "ready"
    with pytest.raises(oc.InterpreterNotFoundError):
        session.drain("missing", undo=True)


def test_the_last_interpreter_keeps_its_libraries_while_it_is_drained(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        assert session.drain("worker-1").state == "draining"
        assert session.ops.const.get(X) == 1
        with pytest.raises(oc.InterpreterNotFoundError, match=r"worker-1 \(cpu; draining\)"):
            session.load(write_library("more", constant(3, namespace="m")))
        session.drain("worker-1", undo=True)
        session.load(write_library("more", constant(3, namespace="m")))
