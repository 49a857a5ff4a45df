"""Limits on the direct calls that wait in an interpreter."""

from __future__ import annotations

import threading

from opdispatch_wire.errors import QueueFullError

# Assumed between the ends of two calls until one has ended, in seconds.
_UNKNOWN_PACE = 0.1


class QueueSpace:
    """The waiting calls, and their bytes, of all libraries together.

    ``_lock`` protects both counts, which are within the limits.
    """

    def __init__(self, interpreter: str, calls: int, size: int) -> None:
        self._interpreter = interpreter
        self._most_calls = calls
        self._most_bytes = size
        self._lock = threading.Lock()
        self.calls = 0
        self.bytes = 0

    def enter(self, operator: str, size: int, seconds: float) -> None:
        """Enter a call that begins to wait; the calls of its library take ``seconds``.

        Raises QueueFullError.
        """
        with self._lock:
            # A call that waits alone may be as large as any message.
            if not self.calls or (
                self.calls < self._most_calls and self.bytes + size <= self._most_bytes
            ):
                self.calls += 1
                self.bytes += size
                return
            calls, waiting = self.calls, self.bytes
        delay = max((seconds or _UNKNOWN_PACE) * (calls // 2 + 1), 0.001)
        raise QueueFullError(
            f"{calls} calls with {waiting} bytes are queued for interpreter {self._interpreter}, "
            f"which is the limit; the call of {operator} never started",
            hint=f"try again in {delay:.3g} s; `opdispatch serve --queue N` sets the limit",
            operator=operator,
            interpreter=self._interpreter,
            started="no",
            retry_after=f"{delay:.3f}",
        )

    def leave(self, size: int) -> None:
        """Leave: the call no longer waits."""
        with self._lock:
            self.calls -= 1
            self.bytes -= size
