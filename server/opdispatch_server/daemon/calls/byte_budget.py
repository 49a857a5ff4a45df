"""How many bytes of large calls the daemon holds at a time, of all clients together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteBudget:
    """Belongs to the event loop.

    A call that is larger than all of the budget is taken when there is no other. Those that wait
    are let in in the order of their coming; ``used`` is what those have that are in.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, size: int, when_in: Callable[[], None]) -> bool:
        """Take ``size`` bytes and return True; otherwise call ``when_in`` when they are taken."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting.append((size, when_in))
        return False

    def give_back(self, size: int) -> None:
        """Return bytes that are held no more."""
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, when_in = self._waiting.popleft()
            self.used += size
            when_in()

    def leave(self, when_in: Callable[[], None]) -> None:
        """Release all that wait in ``when_in``."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] != when_in)
        self.give_back(0)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit
