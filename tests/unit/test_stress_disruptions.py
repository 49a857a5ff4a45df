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


def test_a_death_excuses_what_names_the_interpreter():
    disruptions = Disruptions(expected=True)
    assert not disruptions.excuses(DIED)
    disruptions.note_interpreter("worker-2")
    assert not disruptions.excuses(DIED)
    disruptions.note_interpreter("worker-1")
    assert disruptions.excuses(DIED)
    assert disruptions.counts == {"interpreters killed": 2}


def test_nothing_else_is_excused():
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
