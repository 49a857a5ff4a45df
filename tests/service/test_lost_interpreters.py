"""Libraries that have lost their interpreters: calls wait, and what does not load is given up."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, wait_for
from tests.service.test_interpreters import is_recovered, pid_of, worker
from tests.waits import LONGEST_WAIT

X = np.zeros(2)


def test_calls_wait_for_a_library_that_has_lost_its_only_interpreter(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    text = constant(
        5, extra="lib.define('put(Tensor(a!) x) -> ()')\nlib.impl('put', print, 'CPU')\n"
    )
    with daemon.connect() as session, daemon.connect(retry=False) as careful:
        session.load(write_library("const", text))
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: session.libraries()[0].state == "waiting")
        assert session.ops.const.get(X) == 5
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: session.libraries()[0].state == "waiting")
        # What never started is not run again, but for the first time.
        with Background(session.ops.const.put, X) as writes:
            assert careful.ops.const.get(X) == 5
            assert writes.result() is None
        assert is_recovered(session, {"worker-1": 2})


def test_a_call_that_changes_nothing_runs_again_when_its_library_is_back(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, daemon.connect(retry=False) as careful:
        session.load(write_library("gate", GATE))
        folder = str(daemon.folder)
        with (
            Background(session.ops.gate.wait, X, folder, 1) as again,
            Background(careful.ops.gate.wait, X, folder, 2) as once,
        ):
            entered = [daemon.folder / f"entered-{n}" for n in (1, 2)]
            assert wait_for(lambda: all(path.exists() for path in entered))
            entered[0].unlink()
            os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
            with pytest.raises(oc.InterpreterDiedError):
                once.result()
            assert wait_for(entered[0].exists)
            (daemon.folder / "open").touch()
            assert again.result() == 1


def test_more_calls_than_may_wait_for_a_library_are_refused(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "2", workers=0)
    daemon.expects_errors = True
    with daemon.connect() as session, worker(daemon, "--name", "extra") as process:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        hold = daemon.folder / "hold"
        text = f"import os, time\nwhile os.path.exists({str(hold)!r}):\n    time.sleep(0.005)\n"
        session.load(write_library("const", text + constant(5)))
        hold.touch()
        process.kill()
        process.wait(LONGEST_WAIT)
        with worker(daemon, "--name", "next"):
            assert wait_for(lambda: [i.name for i in session.interpreters()] == ["next"])
            answers: SimpleQueue[object] = SimpleQueue()

            def call() -> None:
                try:
                    answers.put(session.ops.const.get(X))
                except oc.OpdispatchError as error:
                    answers.put(error)

            with Background(call), Background(call), Background(call):
                refused = answers.get(timeout=LONGEST_WAIT)  # whichever came last
                assert isinstance(refused, oc.QueueFullError)
                assert refused.facts["started"] == "no"
                assert float(refused.facts["retry_after"]) > 0
                hold.unlink()
                assert [answers.get(timeout=LONGEST_WAIT) for _ in range(2)] == [5, 5]


def test_a_call_does_not_wait_for_a_library_that_is_unloaded(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--queue", "1", workers=0)
    daemon.expects_errors = True
    with daemon.connect() as session, worker(daemon), worker(daemon):
        assert wait_for(lambda: len(session.interpreters()) == 2)
        session.load(write_library("const", constant(5)))
        [holder] = session.libraries()[0].interpreters
        session.drain(next(i.name for i in session.interpreters() if i.name != holder))
        os.kill(pid_of(session, holder), signal.SIGTERM)
        assert wait_for(lambda: session.libraries()[0].state == "waiting")
        errors: SimpleQueue[oc.OpdispatchError] = SimpleQueue()

        def call() -> None:
            with pytest.raises(oc.OpdispatchError) as caught:
                session.ops.const.get(X)
            errors.put(caught.value)

        with Background(call), Background(call):
            # One waits, and the other one may not.
            assert isinstance(errors.get(timeout=LONGEST_WAIT), oc.QueueFullError)
            session.unload("const")
            error = errors.get(timeout=LONGEST_WAIT)
            assert isinstance(error, oc.OperatorNotFoundError)
            assert "was unloaded" in str(error)


def test_the_daemon_does_not_wait_for_calls_that_wait_for_a_library(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    hold = daemon.folder / "hold"
    text = f"import os, time\nwhile os.path.exists({str(hold)!r}):\n    time.sleep(0.005)\n"
    with daemon.connect(wait=0) as session:
        session.load(write_library("const", text + constant(5)))
        hold.touch()
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: session.libraries()[0].state == "waiting")
        with Background(session.ops.const.get, X) as call:
            assert wait_for(lambda: session.interpreters() and session.libraries())
            daemon.signal(signal.SIGTERM)
            with pytest.raises((oc.RefusedError, oc.DaemonUnavailableError)):
                call.result()
        assert daemon.wait() == 0


def test_a_library_that_brings_every_interpreter_down_is_given_up(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    flag = daemon.folder / "deadly"
    text = (
        "import os, signal\n"
        f"if os.path.exists({str(flag)!r}):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with daemon.connect() as session:
        session.load(write_library("const", text + constant(5)))
        flag.touch()
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: [v.state for v in session.libraries()] == ["failed"])
        assert "went away" in session.libraries()[0].error
        assert wait_for(lambda: session.interpreters())
        session.load(write_library("other", constant(6, namespace="other")))
        assert session.ops.other.get(X) == 6
        assert session.check_invariants() == []


def test_a_library_whose_stored_content_is_damaged_is_given_up_and_says_so(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    path = write_library("const", constant(5))
    with daemon.connect() as session:
        loaded = session.load(path)
        stored = daemon.folder / "state" / "libraries" / loaded.sha256
        stored.write_text("tampered with")
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: [v.state for v in session.libraries()] == ["failed"])
        assert f"the stored content {loaded.sha256[:12]} of the library is damaged" in daemon.log()
        with pytest.raises(oc.OperatorNotFoundError, match="could not be loaded again"):
            session.ops.const.get(X)
        again = session.load(path)
        assert (again.version, again.active, again.error) == (loaded.version, True, "")
        assert session.ops.const.get(X) == 5
        assert stored.read_text() == path.read_text()


def test_flight_record_of_a_dead_interpreter_is_closed_after_judgement(start_daemon: StartDaemon):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True

    def records() -> int:
        links = (path.readlink() for path in Path(f"/proc/{daemon.process.pid}/fd").iterdir())
        return sum("opdispatch-flight" in str(link) for link in links)

    with daemon.connect() as session:
        assert wait_for(lambda: records() == 1)
        for deaths in (1, 2):
            os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
            assert wait_for(lambda n=deaths: is_recovered(session, {"worker-1": n}))
        assert wait_for(lambda: records() == 1)
