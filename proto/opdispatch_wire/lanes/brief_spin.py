"""Looking for what is about to come, for a moment, before sleeping until it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

LOOKS = 100
"""How often a thread looks before it sleeps: about as long as to sleep and be woken takes.

Both take longer on a slow machine, and in a slow hour.
"""

# What is worth a core: to wait for a quarter less.
_GAIN = 0.75
_NEWEST_SHARE = 0.2
# A longer wait counts as so many usual ones: it says no more than that it was long.
_LONGEST = 4.0
# Of so many waits, one is the other way.
_TRIAL = 32
# Where things are not looked for, one of so many waits is timed.
_TIMED = 4
# After so many looks in vain in a row, there are none for a number of waits, and for twice as many
# if it is so again.
_VAIN = 3
_PAUSE, _LONGEST_PAUSE = 32, 4096
# So often it is looked whether a core is free.
_WAITS_AS_BUSY = 256


class BriefSpin:
    """For a thread that waits for one thing, again and again.

    To sleep and be woken on another core costs as much as all the rest of a small call. So where
    things usually come soon, they are looked for LOOKS times before the thread sleeps; but only
    while that makes the waits so much shorter that it is worth the core. It is not where the
    machine has no core to spare: the answering thread may need this one. Now and then the other way
    is tried. ``look`` must let the other threads of the process run, as a poll that does not wait
    does. A process with a single core never spins.
    """

    def __init__(self) -> None:
        self._may = _has_core_to_spare()
        self._spins = False
        self._waits = 0
        self._in_vain = 0
        self._pause = 0
        self._next_pause = _PAUSE
        # How long waits are on average, of each kind.
        self._after_spinning = self._after_sleeping = 0.0

    def wait(
        self,
        look: Callable[[], object],
        sleep: Callable[[*Ts], T],
        /,
        *args: *Ts,
    ) -> T:
        """Look until ``look`` returns true, if that is worth it; return what ``sleep`` does then.

        That is called with the arguments, and returns something false if nothing has come: how long
        this has taken says nothing about others.
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
    """Return whether a second core is here, and not all have something to do without us."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        return cores > 1 and os.getloadavg()[0] <= cores
    except OSError:
        return cores > 1
