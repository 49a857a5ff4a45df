"""Looking for what is about to come, for a moment, before sleeping until it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

SPIN_SECONDS = 150e-6
"""Somewhat longer than a small call takes."""

# A longer wait says no more than that it was long; a rest must not count for ever.
_LONG = 4 * SPIN_SECONDS
# Waits that are so long with the waking may be short without it.
_WORTH_A_TRY = 2 * SPIN_SECONDS
# What is worth the work: to wait for a tenth less.
_GAIN = 0.9
_NEWEST_SHARE = 0.2
# Of so many waits, one is the other way.
_TRIAL = 32


class BriefSpin:
    """For a thread that waits for one thing, again and again.

    To sleep and be woken on another core costs as much as all the rest of a small call. So where
    things usually come within SPIN_SECONDS, they are looked for again and again for so long, before
    the thread sleeps; but only while that makes the waits shorter: if other processes keep the
    cores busy, the answering thread may need this one. Now and then the other way is tried.
    ``look`` must let the other threads of the process run, as a poll that does not wait does. One
    with a single core never spins.
    """

    def __init__(self) -> None:
        self._pays = _count_cores() > 1
        self._waits = 0
        self._since = 0.0
        self._spins = False
        # How long waits are on average: all of them; and the short ones, of each kind.
        self._usual = _LONG
        self._after_spinning = self._after_sleeping = 0.0

    def before_sleeping(self, look: Callable[[], object]) -> None:
        """Return when ``look`` says that it has come, or the thread should sleep."""
        self._since = now = time.perf_counter()
        self._waits += 1
        is_better = self._after_spinning < _GAIN * self._after_sleeping
        is_wanted = is_better == (self._waits % _TRIAL != 0)
        self._spins = is_wanted and self._usual < _WORTH_A_TRY and self._pays
        if self._spins:
            while not look() and time.perf_counter() < now + SPIN_SECONDS:
                pass

    def after_waiting(self) -> None:
        """Record the length of a wait that has ended, before the thread slept or after that."""
        waited = min(time.perf_counter() - self._since, _LONG)
        self._usual += _NEWEST_SHARE * (waited - self._usual)
        if waited == _LONG:
            return
        if self._spins:
            self._after_spinning += _NEWEST_SHARE * (waited - self._after_spinning)
        else:
            self._after_sleeping += _NEWEST_SHARE * (waited - self._after_sleeping)


def _count_cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
