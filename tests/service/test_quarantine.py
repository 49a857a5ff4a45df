"""An interpreter that keeps dying is left alone, visibly, until it is revived."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import opdispatch_client as oc
from opdispatch_client.cli import main
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.interpreter_starts import at_each_start
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_health import channel_to, check

X = np.zeros(2)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def broken_environment(folder: Path) -> dict[str, str]:
    """In it, interpreters die at once while a file exists."""
    return at_each_start(
        folder,
        f"if os.path.exists({str(folder / 'broken')!r}):\n"
        "    os.write(2, b'the disk is on fire\\n')\n"
        "    os._exit(3)\n",
    )


def find(session: oc.Session, name: str) -> oc.Interpreter | None:
    return next((i for i in session.interpreters() if i.name == name), None)


def is_quarantined(session: oc.Session, name: str) -> bool:
    found = find(session, name)
    return found is not None and found.state == "quarantined"


@pytest.fixture
def broken(start_daemon: StartDaemon, tmp_path: Path) -> RunningDaemon:
    """A daemon of which `worker-2` has died and cannot be started again."""
    daemon = start_daemon("--quarantine", "3", environment=broken_environment(tmp_path))
    daemon.expects_errors = True
    (tmp_path / "broken").touch()
    with daemon.connect() as session:
        second = find(session, "worker-2")
        assert second is not None
        os.kill(second.pid, signal.SIGKILL)
        assert wait_for(lambda: is_quarantined(session, "worker-2"), 60)
    return daemon


def test_quarantined_interpreter_is_listed_with_its_output_and_can_be_revived(
    broken: RunningDaemon, write_library: WriteLibrary, capsys: pytest.CaptureFixture[str]
):
    with broken.connect() as session, channel_to(broken) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        found = find(session, "worker-2")
        assert found is not None
        assert found.trouble == (
            "it died 3 times in a row soon after its start; the last time it exited with status 3"
        )
        assert found.last_lines == ("the disk is on fire",)
        assert (found.pid, found.heartbeat_age, found.supervised) == (0, None, True)
        # The other one serves.
        assert check(health, "") == SERVING
        assert check(health, "interpreter/worker-1") == SERVING
        assert check(health, "interpreter/worker-2") == NOT_SERVING
        session.load(write_library("const", constant(1)))
        assert session.ops.const.get(X) == 1
        with pytest.raises(oc.InterpreterNotFoundError, match="worker-2"):
            session.load(write_library("other", constant(2)), interpreter="worker-2")

        assert main(["--address", broken.address, "interpreters"]) == 0
        shown = capsys.readouterr().out
        assert "quarantined" in shown
        assert "    the disk is on fire" in shown
        assert "`opdispatch revive worker-2` starts it again" in shown

        (broken.folder / "broken").unlink()
        assert main(["--address", broken.address, "revive", "worker-2"]) == 0
        assert capsys.readouterr().out == "worker-2 is being started\n"
        assert wait_for(lambda: check(health, "interpreter/worker-2") == SERVING)
        revived = find(session, "worker-2")
        assert revived is not None
        assert (revived.state, revived.trouble) == ("ready", "")
        assert main(["--address", broken.address, "revive", "worker-2"]) == 0
        assert capsys.readouterr().out == "worker-2 is not quarantined\n"
    log = {record.get("event"): record for record in broken.log_records()}
    message = log["interpreter_quarantined"]["message"]
    assert "worker-2 is quarantined: it died 3 times" in message
    revived = log["interpreter_revived"]
    assert (revived["interpreter"], "via unix socket" in revived["identity"]) == ("worker-2", True)


@pytest.mark.parametrize("place", [{}, {"interpreter": "worker-1"}, {"on": "cpu"}])
def test_a_load_waits_for_an_interpreter_that_is_being_started_again(
    start_daemon: StartDaemon, tmp_path: Path, write_library: WriteLibrary, place: dict[str, str]
):
    daemon = start_daemon(workers=1, environment=broken_environment(tmp_path))
    daemon.expects_errors = True
    path = write_library("const", constant(1))
    with daemon.connect() as session:
        (tmp_path / "broken").touch()
        (before,) = session.interpreters()
        os.kill(before.pid, signal.SIGKILL)
        assert wait_for(lambda: not session.interpreters())
        # The daemon answers in four fifths of that; the answer has the rest of it to arrive.
        with daemon.connect(timeout=2) as impatient, pytest.raises(oc.WaitTimeoutError) as late:
            impatient.load(path, **place)
        assert "which is not ready yet" in str(late.value)
        with Background(session.load, path, **place) as load:
            (tmp_path / "broken").unlink()
        assert load.result().interpreters == ("worker-1",)
        assert session.ops.const.get(X) == 1


def test_one_that_is_revived_and_dies_again_is_quarantined_again(broken: RunningDaemon):
    with broken.connect() as session:
        restarts = getattr(find(session, "worker-2"), "restarts", 0)
        assert session.revive("worker-2")
        assert wait_for(lambda: (i := find(session, "worker-2")) and i.restarts > restarts + 1, 60)
        assert is_quarantined(session, "worker-2")


def test_the_daemon_stops_though_one_is_quarantined(broken: RunningDaemon):
    assert broken.stop() == 0


def test_only_the_daemons_own_can_be_revived(daemon: RunningDaemon, session: oc.Session):
    assert not session.revive("worker-1")
    with pytest.raises(oc.InterpreterNotFoundError) as caught:
        session.revive("missing")
    assert str(caught.value) == (
        "the daemon runs no interpreter named 'missing' itself; those it runs: worker-1, worker-2"
    )


def test_without_any_interpreter_left_nothing_is_serving_and_requests_say_what_helps(
    start_daemon: StartDaemon, tmp_path: Path, write_library: WriteLibrary
):
    daemon = start_daemon("--quarantine", "1", environment=broken_environment(tmp_path))
    daemon.expects_errors = True
    why = "every interpreter that could take it is quarantined: worker-1, worker-2"
    revivals = "`opdispatch revive worker-1`, `opdispatch revive worker-2`"
    with daemon.connect() as session, channel_to(daemon) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        session.load(write_library("const", constant(1)))
        (tmp_path / "broken").touch()
        for interpreter in session.interpreters():
            os.kill(interpreter.pid, signal.SIGKILL)
        # A call that waits for the library hears of it as soon as that is hopeless.
        with pytest.raises(oc.RefusedError) as refused:
            session.ops.const.get(X)
        assert str(refused.value).startswith(
            "const::get cannot be called now: library 'const' has lost its interpreter, and "
            f"{why} ("
        )
        assert revivals in refused.value.hint
        assert refused.value.facts["started"] == "no"
        with pytest.raises(oc.InterpreterNotFoundError) as caught:
            session.load(write_library("other", constant(2, namespace="other")))
        assert str(caught.value).startswith(f"the library cannot be loaded: {why} (")
        assert revivals in caught.value.hint
        assert is_quarantined(session, "worker-1")
        assert is_quarantined(session, "worker-2")
        assert check(health, "") == NOT_SERVING
        (tmp_path / "broken").unlink()
        assert session.revive("worker-1")
        assert session.ops.const.get(X) == 1
        assert wait_for(lambda: check(health, "") == SERVING)


def test_one_that_was_stopped_over_a_slow_kernel_is_not_blamed(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--quarantine", "1", "--kernel-timeout", "0.2", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("gate", GATE))
        for restarts in (1, 2):
            with pytest.raises(oc.KernelTimeoutError):
                session.ops.gate.wait(X, str(daemon.folder))
            assert wait_for(
                lambda restarts=restarts: (
                    (i := find(session, "worker-1")) is not None
                    and (i.restarts, i.state) == (restarts, "ready")
                ),
            )
