"""The time that a kernel spends waiting for its nested calls, which does not count as its own."""

from __future__ import annotations

import threading
import time


class NestedTime:
    """The nested calls of one kernel's run. Any thread may use it.

    ``_lock`` protects the count and the sums: time passes while at least one call is in progress.
    All instances share it, each time for a few instructions, because few kernels make calls.
    """

    _lock = threading.Lock()
    _calls = 0
    _since = 0.0
    _total = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a nested call is in progress."""
        return self._calls > 0

    @property
    def seconds(self) -> float:
        """Seconds during which nested calls were in progress, without those still running."""
        return self._total

    def begin(self) -> None:
        """Begin a call of the kernel."""
        with self._lock:
            if not self._calls:
                self._since = time.monotonic()
            self._calls += 1

    def end(self) -> None:
        """End one of its calls."""
        with self._lock:
            self._calls -= 1
            if not self._calls:
                self._total += time.monotonic() - self._since

    def own_seconds(self, began: float) -> float:
        """Return the kernel's own time, if it began at ``began``, a time of ``time.monotonic``."""
        with self._lock:
            now = self._since if self._calls else time.monotonic()
            return now - began - self._total
