"""A limit on the bytes of shared memory that several arenas have together."""

from __future__ import annotations

import threading

from opdispatch_wire.process_memory_limit import memory_limit


class MemoryBudget:
    """A number of bytes that arenas take from and give back to. Thread-safe.

    Guards      ``_lock`` guards ``_taken``, which is at most ``limit`` and never negative.
    Forbidden   allocating objects while the lock is held: the garbage collector may run, and
                collected arenas call ``give_back``, which would deadlock.
    """

    def __init__(self, limit: int | None = None) -> None:
        """Allow at most ``limit`` bytes: a quarter of ``memory_limit`` by default."""
        self.limit = memory_limit() // 4 if limit is None else limit
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def left(self) -> int:
        """The number of bytes that can be taken now."""
        return self.limit - self._taken

    def take(self, size: int) -> None:
        """Take ``size`` bytes. Raises OSError if fewer are left."""
        with self._lock:
            fits = self._taken + size <= self.limit
            if fits:
                self._taken += size
        if not fits:
            raise OSError(f"the limit of {self.limit} bytes is reached")

    def give_back(self, size: int) -> None:
        """Give back bytes that were taken."""
        with self._lock:
            self._taken -= size
