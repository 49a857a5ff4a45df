"""The calls that the daemon relays to interpreters which a session does not reach itself."""

from __future__ import annotations

import threading


class RelayedCall:
    """One of them, meant for the interpreter with that session number; in flight until ``end``."""

    __slots__ = ("_calls", "session")

    def __init__(self, calls: RelayedCalls, session: int) -> None:
        self._calls: RelayedCalls | None = calls
        self.session = session

    def end(self) -> None:
        """Take the call off the count. Idempotent; any thread may."""
        if (calls := self._calls) is not None:
            with calls.mutex:
                if self._calls is not None:  # else another thread has, as it was cancelled
                    self._calls = None
                    calls.count(self.session, -1)


class RelayedCalls:
    """How many are in flight, by the session that each is meant for.

    ``mutex`` is held for changes; any thread may look. Counts are positive: an interpreter
    without calls is not in ``_counts``.
    """

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self._counts: dict[int, int] = {}

    def in_flight(self, session: int) -> int:
        """Return how many calls wait for their replies."""
        return self._counts.get(session, 0)

    def begin(self, session: int) -> RelayedCall:
        """Count a call."""
        with self.mutex:
            self.count(session, 1)
        return RelayedCall(self, session)

    def count(self, session: int, change: int) -> None:
        """Add to the count of an interpreter, with ``mutex`` held."""
        now = self._counts.pop(session, 0) + change
        if now:
            self._counts[session] = now
