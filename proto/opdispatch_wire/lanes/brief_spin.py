"""Looking for what is about to come, for a moment, before sleeping until it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

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
        self._waits = 0
        self._since = 0.0
        self._spins = False
        self._in_vain = 0
        self._pause = 0
        self._next_pause = _PAUSE
        # How long waits are on average, of each kind.
        self._after_spinning = self._after_sleeping = 0.0

    def before_sleeping(self, look: Callable[[], object]) -> None:
        """Look until ``look`` returns true; return when it has, or the thread should sleep."""
        self._since = time.perf_counter()
        self._waits += 1
        self._spins = False
        if not self._waits % _WAITS_AS_BUSY:
            self._may = _has_core_to_spare()
        if self._pause:
            self._pause -= 1
            return
        is_better = self._after_spinning < _GAIN * self._after_sleeping
        if not self._may or is_better == (not self._waits % _TRIAL):
            return
        self._spins = True
        for _ in range(LOOKS):
            if look():
                self._in_vain, self._next_pause = 0, _PAUSE
                return
        self._in_vain += 1
        if self._in_vain == _VAIN:
            self._in_vain, self._pause = 0, self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)

    def after_waiting(self) -> None:
        """Record the wait: it has come, before the thread slept or after that."""
        waited = time.perf_counter() - self._since
        usual = (self._after_spinning if self._spins else self._after_sleeping) or waited
        usual += _NEWEST_SHARE * (min(waited, _LONGEST * usual) - usual)
        if self._spins:
            self._after_spinning = usual
        else:
            self._after_sleeping = usual


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
