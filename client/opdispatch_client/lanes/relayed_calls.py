"""Count the calls that the daemon relays to interpreters which a session cannot reach itself."""

from __future__ import annotations

import threading


class RelayedCall:
    """A call relayed to the interpreter with that session number; in flight until ``end``."""

    __slots__ = ("_calls", "session")

    def __init__(self, calls: RelayedCalls, session: int) -> None:
        self._calls: RelayedCalls | None = calls
        self.session = session

    def end(self) -> None:
        """Count the call as ended. Idempotent and thread-safe."""
        if (calls := self._calls) is not None:
            with calls.mutex:
                if self._calls is not None:  # otherwise another thread has just cancelled the call
                    self._calls = None
                    calls.count(self.session, -1)


class RelayedCalls:
    """The numbers of relayed calls in flight, by the session number of their interpreters.

    ``mutex`` is held for changes; reading needs no lock. All counts are positive: an interpreter
    without calls is not in ``_counts``.
    """

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self._counts: dict[int, int] = {}

    def in_flight(self, session: int) -> int:
        """Return the number of calls relayed to an interpreter that wait for their replies."""
        return self._counts.get(session, 0)

    def begin(self, session: int) -> RelayedCall:
        """Count a call as in flight; the caller ends it."""
        with self.mutex:
            self.count(session, 1)
        return RelayedCall(self, session)

    def count(self, session: int, change: int) -> None:
        """Add to the count of an interpreter. The caller holds ``mutex``."""
        now = self._counts.pop(session, 0) + change
        if now:
            self._counts[session] = now
