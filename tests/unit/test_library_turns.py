"""Turns in a library where no thread can be started."""

from __future__ import annotations

from opdispatch.errors import OpdispatchError
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_wire.errors import RefusedError


class Call:
    """A job that begins while ``has_thread``."""

    size = 0

    def __init__(self, operator: str, *, has_thread: bool) -> None:
        self.operator = operator
        self.source = self
        self.has_thread = has_thread
        self.has_started = False
        self.error: OpdispatchError | None = None

    def start(self, turns: LibraryTurns[Call]) -> None:
        if not self.has_thread:
            raise RuntimeError("can't start new thread")
        self.has_started = True

    def refuse(self, error: OpdispatchError) -> None:
        self.error = error


def test_a_call_without_a_thread_is_refused_and_the_next_one_begins():
    turns: LibraryTurns[Call] = LibraryTurns()
    first, second = Call("a::f", has_thread=False), Call("a::g", has_thread=True)
    assert turns.begin(first, limit=1)
    assert not turns.begin(second, limit=1)
    turns.start(first)
    assert isinstance(first.error, RefusedError)
    assert str(first.error).startswith(
        "the interpreter cannot start a thread for the call of a::f, "
        "which never started: can't start new"
    )
    assert first.error.facts["started"] == "no"
    assert (second.has_started, second.error) == (True, None)


def test_the_turn_of_a_refused_call_is_free():
    turns: LibraryTurns[Call] = LibraryTurns()
    for _ in range(3):
        call = Call("a::f", has_thread=False)
        assert turns.begin(call, limit=1)
        turns.start(call)
        assert call.error is not None
