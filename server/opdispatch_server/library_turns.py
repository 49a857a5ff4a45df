"""Whose turn it is among the calls of one library in an interpreter."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Job = TypeVar("Job")

# The weight of the newest call in the average.
_NEWEST_SHARE = 0.2


class LibraryTurns(Generic[Job]):
    """The calls of one library that run, and those that wait for one of them to end.

    The daemon sends a few calls more than the library runs at a time: see Note [Calls that are
    sent ahead]. ``_lock`` protects all of it; somebody waits only while ``limit`` calls run, and
    each of these, when it ends, starts the next one in its place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[Job] = deque()
        self.seconds = 0.0
        """How long a call takes, on average; 0 before the first one has ended."""

    def begin(self, job: Job, limit: int) -> bool:
        """Whether the call may run now; otherwise ``end`` of another one gives it back."""
        with self._lock:
            if self._running < max(limit, 1) and not self._waiting:
                self._running += 1
                return True
            self._waiting.append(job)
            return False

    def end(self) -> Job | None:
        """A call has ended: the one that is to run in its place, if one waits."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None

    def note(self, seconds: float) -> None:
        """Counts the time that a call took."""
        # Without the lock: of two calls that end at once, the average may miss one.
        self.seconds += _NEWEST_SHARE * (seconds - self.seconds)
