"""A thread that sleeps until a deadline, and is there only while there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

Expire = Callable[[float], "float | None"]


class DeadlineWatch:
    """Calls ``expire(now)`` when a deadline has come; it returns the next one, if there is one.

    Deadlines are times of ``time.monotonic``. ``_changed`` protects ``_next``, the earliest
    one, and ``_is_watching``: the thread is there, or no deadline is. It is held while the thread
    is started, so that no call relies on one that cannot be.
    """

    def __init__(self, expire: Expire) -> None:
        self._expire = expire
        self._changed = threading.Condition()
        self._next: float | None = None
        self._is_watching = False

    def look_at(self, deadline: float) -> None:
        """Schedule a call of ``expire`` at ``deadline``, or earlier and then again.

        Raises RuntimeError if there is no thread that could do so.
        """
        earliest = self._next
        if earliest is not None and earliest <= deadline:
            # ``expire`` is called before that, and says whether this one is still of interest.
            return
        with self._changed:
            if not self._is_watching:
                threading.Thread(target=self._watch, name="deadline-watch", daemon=True).start()
                self._is_watching = True
            if self._next is None or deadline < self._next:
                self._next = deadline
                self._changed.notify()

    def stop(self) -> None:
        """Stop watching: no deadline is of interest any more."""
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
        """Sleep until a deadline has come; False if there is none any more."""
        with self._changed:
            while self._next is not None:
                left = self._next - time.monotonic()
                if left <= 0:
                    # Cleared before ``expire`` runs: a call that is added meanwhile does not rely
                    # on this look.
                    self._next = None
                    return True
                self._changed.wait(left)
            self._is_watching = False
            return False
