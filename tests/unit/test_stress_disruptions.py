"""Which failures a race may blame on what it has killed itself."""

from __future__ import annotations

from opdispatch.errors import OperatorNotFoundError
from opdispatch_stress.disruptions import Disruptions
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    KernelError,
    RefusedError,
)

DIED = InterpreterDiedError("worker-1 went away", interpreter="worker-1")


def test_a_death_excuses_what_names_the_interpreter():
    disruptions = Disruptions(interpreters=True)
    assert not disruptions.excuses(DIED)
    disruptions.note_interpreter("worker-2")
    assert not disruptions.excuses(DIED)
    disruptions.note_interpreter("worker-1")
    assert disruptions.excuses(DIED)
    assert disruptions.counts == {"interpreters killed": 2}


def test_disruption_excuses_only_its_own_errors():
    disruptions = Disruptions()
    refused, away = RefusedError("busy"), DaemonUnavailableError("gone")
    assert not disruptions.excuses(refused)
    assert not disruptions.excuses(away)
    disruptions.note_interpreter("worker-1")
    assert disruptions.excuses(refused)
    assert not disruptions.excuses(away)
    disruptions.note_daemon()
    assert disruptions.excuses(away)
    for error in (OperatorNotFoundError("gone"), KernelError("raised")):
        assert not disruptions.excuses(error)


def test_a_death_excuses_no_call_but_one_that_may_have_written():
    disruptions = Disruptions(interpreters=True)
    disruptions.note_interpreter("worker-1")
    queued = InterpreterDiedError("worker-1 went away", interpreter="worker-1", started="no")
    stranger = InterpreterDiedError("worker-2 went away", interpreter="worker-2")
    assert disruptions.excuses_call(DIED, mutates=True)
    assert not disruptions.excuses_call(DIED, mutates=False)
    for mutates in (False, True):
        for error in (queued, stranger, RefusedError("away"), DaemonUnavailableError("gone")):
            assert not disruptions.excuses_call(error, mutates=mutates)
    disruptions.note_daemon()
    assert disruptions.excuses_call(RefusedError("away"), mutates=False)
    assert disruptions.excuses_call(DaemonUnavailableError("gone"), mutates=True)
    assert not disruptions.excuses_call(DIED, mutates=False)


def test_failed_call_is_excused_while_there_is_no_daemon():
    alone = InterpreterDiedError("went away", interpreter="worker-1", daemon="unavailable")
    disruptions = Disruptions(interpreters=True, daemon=True)
    disruptions.note_interpreter("worker-1")
    for mutates in (False, True):
        assert not disruptions.excuses_call(alone, mutates=mutates)
    disruptions.note_daemon()
    for mutates in (False, True):
        assert disruptions.excuses_call(alone, mutates=mutates)


def test_interpreters_end_with_a_daemon_that_was_killed():
    disruptions = Disruptions(daemon=True)
    assert not disruptions.excuses_call(DIED, mutates=True)
    disruptions.note_daemon()
    assert disruptions.excuses(DIED)
    assert disruptions.excuses_call(DIED, mutates=True)
    assert not disruptions.excuses_call(DIED, mutates=False)
