"""The limit on the bytes of large calls that the daemon holds at a time, for all clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteBudget:
    """A budget of bytes, with a queue for calls that do not fit. For the event loop only.

    A call that is larger than the whole budget is admitted when it is the only one. Waiting calls
    are admitted in order of arrival; ``used`` counts the bytes of admitted calls.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, size: int, when_in: Callable[[], None]) -> bool:
        """Take ``size`` bytes and return True, or return False and call ``when_in`` when taken."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting.append((size, when_in))
        return False

    def give_back(self, size: int) -> None:
        """Return bytes that are no longer held."""
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, when_in = self._waiting.popleft()
            self.used += size
            when_in()

    def leave(self, when_in: Callable[[], None]) -> None:
        """Remove ``when_in`` from the queue."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != when_in)
        self.give_back(0)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit
