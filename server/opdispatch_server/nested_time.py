"""The time that a kernel spends waiting for the calls that it makes: not its own."""

from __future__ import annotations

import threading
import time


class NestedTime:
    """Of one run of a kernel. Any thread may begin and end such calls, and look.

    ``_lock`` protects the count and the sums: time passes while at least one call is under way.
    It is one for all, held for a few instructions: few kernels make calls, and each has its time.
    """

    _lock = threading.Lock()
    _calls = 0
    _since = 0.0
    _total = 0.0

    @property
    def is_running(self) -> bool:
        """Whether such a call is under way."""
        return self._calls > 0

    @property
    def seconds(self) -> float:
        """How long such calls have been under way, of those that have ended."""
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
