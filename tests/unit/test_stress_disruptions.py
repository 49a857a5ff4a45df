"""Which failures a race may blame on what it has killed itself."""

from __future__ import annotations

from opdispatch.errors import OperatorNotFoundError
from opdispatch_client.stress.disruptions import Disruptions
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    KernelError,
    RefusedError,
)

DIED = InterpreterDiedError("worker-1 went away", interpreter="worker-1")


def test_a_death_excuses_calls_that_cannot_be_repeated():
    disruptions = Disruptions(expected=True)
    assert not disruptions.excuses(DIED, repeatable=False)
    disruptions.note_interpreter("worker-2")
    assert not disruptions.excuses(DIED, repeatable=False)
    disruptions.note_interpreter("worker-1")
    assert disruptions.excuses(DIED, repeatable=False)
    assert not disruptions.excuses(DIED, repeatable=True)
    assert disruptions.counts == {"interpreters killed": 2}


def test_nothing_else_is_excused():
    disruptions = Disruptions()
    refused, away = RefusedError("busy"), DaemonUnavailableError("gone")
    assert not disruptions.excuses(refused, repeatable=True)
    assert not disruptions.excuses(away, repeatable=True)
    disruptions.note_interpreter("worker-1")
    assert disruptions.excuses(refused, repeatable=True)
    assert not disruptions.excuses(away, repeatable=True)
    disruptions.note_daemon()
    assert disruptions.excuses(away, repeatable=True)
    for error in (OperatorNotFoundError("gone"), KernelError("raised")):
        assert not disruptions.excuses(error, repeatable=False)
