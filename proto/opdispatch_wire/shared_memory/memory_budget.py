"""How many bytes of shared memory several arenas may have together."""

from __future__ import annotations

import threading

from opdispatch_wire.process_memory_limit import memory_limit


class MemoryBudget:
    """Any thread may take from it.

    Guards      ``_lock`` guards ``_taken``, which is at most ``limit`` and never negative.
    Forbidden   making anything while it is held: the collector may strike, and arenas that are
                collected give back what they have.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Allow at most ``limit`` bytes: a quarter of ``memory_limit`` by default."""
        self.limit = memory_limit() // 4 if limit is None else limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def left(self) -> int:
        """How many bytes could be taken now."""
        return self.limit - self._taken

    def take(self, size: int) -> None:
        """Take that many bytes. Raises OSError if they are more than are left."""
        with self._lock:
            fits = self._taken + size <= self.limit
            if fits:
                self._taken += size
        if not fits:
            raise OSError(f"the limit of {self.limit} bytes is reached")

    def give_back(self, size: int) -> None:
        """Return bytes that were taken."""
        with self._lock:
            self._taken -= size
