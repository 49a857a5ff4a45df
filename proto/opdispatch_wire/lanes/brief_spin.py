"""Poll briefly for an event before sleeping until it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

LOOKS = 100
"""Polls before a thread sleeps: about as long as sleeping and waking up take.

A count and not a time, since both take longer on a slow machine.
"""
# Spinning is worth a core if waits then take at most this fraction of the time.
_GAIN = 0.75
_NEWEST_SHARE = 0.2
# An outlier counts as at most so many times the average wait.
_LONGEST = 4.0
# One of so many waits uses the other method, so that both averages stay up to date.
_TRIAL = 32
# While the thread does not spin, only one of so many waits is timed.
_TIMED = 4
# After so many vain spins in a row, the thread does not spin for a number of waits, which doubles
# each time.
_VAIN = 3
_PAUSE, _LONGEST_PAUSE = 32, 4096
# After so many waits, the load of the machine is checked again.
_WAITS_AS_BUSY = 256


class BriefSpin:
    """Decides for one waiting thread whether to spin before it sleeps. For one thread at a time.

    Sleeping and waking up on another core cost as much as all the rest of a small call. So if
    events usually come soon, the thread polls LOOKS times before it sleeps, as long as that
    shortens its waits enough to be worth a core. It does not spin if the machine has no core to
    spare, because the thread that answers may need this one, and never with a single core. ``look``
    must release the GIL, as a poll with timeout 0 does.
    """

    def __init__(self) -> None:
        self._may = _has_core_to_spare()
        self._spins = False
        self._waits = 0
        self._in_vain = 0
        self._pause = 0
        self._next_pause = _PAUSE
        # Average waits in seconds.
        self._after_spinning = self._after_sleeping = 0.0

    def wait(
        self,
        look: Callable[[], object],
        sleep: Callable[[*Ts], T],
        /,
        *args: *Ts,
    ) -> T:
        """Poll with ``look`` while that is worth it, then call ``sleep`` and return its result.

        ``sleep`` gets the arguments. If it returns something false, such as after a timeout, this
        wait does not count towards the averages.
        """
        self._waits = waits = self._waits + 1
        if not self._spins and waits % _TIMED:
            return sleep(*args)
        if not waits % _WAITS_AS_BUSY:
            self._may = _has_core_to_spare()
        if not self._may:
            self._spins = False
            return sleep(*args)
        since = time.perf_counter()
        spins = False
        if self._pause:
            self._pause = max(self._pause - _TIMED, 0)
        else:
            spins = self._spins != (not waits % _TRIAL)
            if spins:
                self._spin(look)
        result = sleep(*args)
        if result:
            waited = time.perf_counter() - since
            usual = (self._after_spinning if spins else self._after_sleeping) or waited
            usual += _NEWEST_SHARE * (min(waited, _LONGEST * usual) - usual)
            if spins:
                self._after_spinning = usual
            else:
                self._after_sleeping = usual
        is_better = self._after_spinning < _GAIN * self._after_sleeping
        self._spins = is_better and not self._pause
        return result

    def _spin(self, look: Callable[[], object]) -> None:
        for _ in range(LOOKS):
            if look():
                self._in_vain, self._next_pause = 0, _PAUSE
                return
        self._in_vain += 1
        if self._in_vain == _VAIN:
            self._in_vain, self._pause = 0, self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)


def _has_core_to_spare() -> bool:
    """Return whether there are several cores, and fewer runnable processes than cores."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        return cores > 1 and os.getloadavg()[0] <= cores
    except OSError:
        return cores > 1
