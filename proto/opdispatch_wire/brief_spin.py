"""Looking for what is about to come, for a moment, before sleeping until it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SPIN_SECONDS = 150e-6
"""Somewhat longer than a small call takes."""

# A longer wait says no more than that it was long; a rest must not count for ever.
_LONG = 4 * SPIN_SECONDS
_NEWEST_SHARE = 0.2


class BriefSpin:
    """For a thread that waits for one thing, again and again.

    To sleep and be woken on another core costs as much as all the rest of a small call. So where
    things have usually come within SPIN_SECONDS, they are looked for again and again for so long,
    before the thread sleeps. ``look`` must let the other threads of the process run. One that has
    a single core to run on never spins: whoever is to answer may need that one.
    """

    def __init__(self) -> None:
        self._pays = count_cores() > 1
        self._usual = _LONG
        self._since = 0.0

    def before_sleeping(self, look: Callable[[], bool]) -> None:
        """Returns when ``look`` says that it has come, or the thread should sleep."""
        self._since = now = time.perf_counter()
        if self._pays and self._usual < SPIN_SECONDS:
            while not look() and time.perf_counter() < now + SPIN_SECONDS:
                pass

    def after_waiting(self) -> None:
        """It has come, before the thread slept or after that."""
        waited = min(time.perf_counter() - self._since, _LONG)
        self._usual += _NEWEST_SHARE * (waited - self._usual)


def count_cores() -> int:
    """How many cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
