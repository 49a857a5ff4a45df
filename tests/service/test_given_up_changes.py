"""Changes whose callers give up while the journal is being written: done whole, or not at all."""

from __future__ import annotations

import pytest

import opdispatch_client as oc
from tests.service.conftest import WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, journal_held, wait_for


def state_of(session: oc.Session, name: str) -> str:
    return next(each.state for each in session.interpreters() if each.name == name)


def test_a_drain_that_is_in_the_journal_is_in_force(daemon: RunningDaemon, session: oc.Session):
    with daemon.connect(timeout=0.5) as hasty:
        with journal_held(daemon), pytest.raises(oc.OpdispatchError):
            hasty.drain("worker-1")
        assert wait_for(lambda: state_of(session, "worker-1") == "drained")
        with journal_held(daemon), pytest.raises(oc.OpdispatchError):
            hasty.drain("worker-1", undo=True)
        assert wait_for(lambda: state_of(session, "worker-1") == "ready")


def test_wanted_interpreters_follow_the_journal_after_an_abandoned_change(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    session.load(path)
    with daemon.connect(timeout=0.5) as hasty:
        with journal_held(daemon), pytest.raises(oc.OpdispatchError):
            hasty.load(path, interpreters=2)
        assert wait_for(lambda: session.libraries()[0].interpreters_wanted == 1)
    session.scale("const", 2)
    assert session.libraries()[0].interpreters_wanted == 2
