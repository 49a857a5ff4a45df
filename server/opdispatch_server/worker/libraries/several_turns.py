"""Turns in several libraries at once, for a program that uses them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.libraries.turns import LibraryTurns


class _TurnWait:
    """One turn for which a thread waits: a Job."""

    size = 0
    waits_since = 0

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.source = self  # unique: no other call has to keep its order with this one
        self._given = threading.Event()
        self._refusal: OpdispatchError | None = None

    def start(self, turns: LibraryTurns[_TurnWait]) -> None:
        """Start the call: it has its turn until ``LibraryTurns.end``."""
        self._given.set()

    def wait(self) -> None:
        """Wait for the turn, or raise the error with which it was refused."""
        self._given.wait()
        if self._refusal is not None:
            raise self._refusal

    def refuse(self, error: OpdispatchError) -> None:
        """Refuse the call: it never gets its turn."""
        self._refusal = error
        self._given.set()


@contextmanager
def turns_of_all(libraries: Sequence[LoadedLibrary], operator: str) -> Iterator[None]:
    """Wait for a turn in each library, in the order of load ids, so that no two programs deadlock.

    See Note [Calls of several libraries] for the daemon's part. Direct calls of clients take turns,
    too, of which the daemon does not know.
    """
    taken = []
    try:
        for library in sorted(libraries, key=lambda library: library.load_id):
            waiting = _TurnWait(operator)
            limit = min(library.max_concurrency, KERNEL_THREADS)
            if not library.turns.begin(waiting, limit):
                waiting.wait()
            # Only now: a turn that was refused raises above, and must not be ended.
            taken.append(library.turns)
        yield
    finally:
        for turns in reversed(taken):
            following = turns.end()
            if following is not None:
                turns.start(following)
