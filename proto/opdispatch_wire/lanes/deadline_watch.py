"""A thread that sleeps until a deadline, and exists only while there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Expire = Callable[[float], "float | None"]


class DeadlineWatch:
    """Calls ``expire(now)`` at a deadline; ``expire`` returns the next deadline or None.

    Deadlines are times of ``time.monotonic``. ``_changed`` protects ``_next``, the earliest
    deadline, and ``_is_watching``, which is true while the thread runs, and so whenever there is a
    deadline. It is held while the thread is started, so that no call relies on a thread that could
    not be started.
    """

    def __init__(self, expire: Expire) -> None:
        self._expire = expire
        self._changed = threading.Condition()
        self._next: float | None = None
        self._is_watching = False

    def look_at(self, deadline: float) -> None:
        """Schedule a call of ``expire`` at ``deadline``, or earlier and then again.

        Raises RuntimeError if no thread can be started.
        """
        earliest = self._next
        if earliest is not None and earliest <= deadline:
            # ``expire`` will be called before ``deadline``, and return it if it still matters.
            return
        with self._changed:
            if not self._is_watching:
                threading.Thread(target=self._watch, name="deadline-watch", daemon=True).start()
                self._is_watching = True
            if self._next is None or deadline < self._next:
                self._next = deadline
                self._changed.notify()

    def stop(self) -> None:
        """Drop all deadlines, which ends the thread."""
        with self._changed:
            self._next = None
            self._changed.notify()

    def _watch(self) -> None:
        while self._sleep():
            following = self._expire(time.monotonic())
            if following is not None:
                with self._changed:
                    if self._next is None or following < self._next:
                        self._next = following

    def _sleep(self) -> bool:
        """Sleep until the next deadline; return False, with the thread to end, if there is none."""
        with self._changed:
            while self._next is not None:
                left = self._next - time.monotonic()
                if left <= 0:
                    # Cleared before ``expire`` runs, so that a call added meanwhile, which
                    # ``expire`` may have missed, schedules its own deadline.
                    self._next = None
                    return True
                self._changed.wait(left)
            self._is_watching = False
            return False
