"""Calls that come while the registry is being changed: the daemon goes on, and so do they."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_interpreters import is_recovered, pid_of

X = np.zeros(2)


class Hold:
    """While it is ``on``, a daemon does not come out of a method of its registry.

    See held_daemon.py.
    """

    def __init__(self, folder: Path, start_daemon: StartDaemon) -> None:
        self._path = folder / "hold"
        self._start_daemon = start_daemon

    def start_daemon(self, method: str) -> RunningDaemon:
        """One that can be held in that method."""
        program = (str(Path(__file__).with_name("held_daemon.py")), method, str(self._path))
        daemon = self._start_daemon(workers=1, program=program)
        daemon.expects_errors = True
        return daemon

    def on(self) -> None:
        self._path.touch()

    def off(self) -> None:
        self._path.unlink(missing_ok=True)

    def wait_until_entered(self) -> None:
        assert wait_for(self._path.with_suffix(".entered").exists)


@pytest.fixture
def hold(tmp_path: Path, start_daemon: StartDaemon) -> Iterator[Hold]:
    hold = Hold(tmp_path, start_daemon)
    yield hold
    hold.off()


def test_a_call_waits_until_its_library_is_published_again(hold: Hold, write_library: WriteLibrary):
    with hold.start_daemon("own").connect() as session:
        session.load(write_library("const", constant(5)))
        hold.on()
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        hold.wait_until_entered()
        with Background(session.ops.const.get, X) as call:
            assert session.interpreters()  # the daemon answers
            hold.off()
            assert call.result() == 5
        assert is_recovered(session, {"worker-1": 1})


def test_call_waits_for_a_library_no_longer_than_its_timeout(
    hold: Hold, write_library: WriteLibrary
):
    daemon = hold.start_daemon("own")
    with daemon.connect() as session, daemon.connect(timeout=2) as hasty:
        session.load(write_library("const", constant(5)))
        hold.on()
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        hold.wait_until_entered()
        with pytest.raises(oc.RefusedError, match="is being loaded into another one"):
            hasty.ops.const.get(X)
        hold.off()
        assert session.ops.const.get(X) == 5


def test_a_call_whose_library_dies_on_its_way_out_learns_that_it_was_unloaded(
    hold: Hold, write_library: WriteLibrary
):
    with hold.start_daemon("publish").connect() as session:
        session.load(write_library("const", constant(5)))
        pid = pid_of(session, "worker-1")
        hold.on()
        with Background(session.unload, "const") as unload:
            hold.wait_until_entered()
            os.kill(pid, signal.SIGKILL)
            assert wait_for(lambda: pid not in [each.pid for each in session.interpreters()])
            with Background(session.ops.const.get, X) as call:
                session.interpreters()  # the daemon answers
                hold.off()
                with pytest.raises(oc.OperatorNotFoundError, match="was unloaded"):
                    call.result()
            unload.result()
