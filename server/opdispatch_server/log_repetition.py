"""Rate limiting of similar log records: every one at first, then ever fewer.

Note [Records that are alike]
    The first is logged at once. Records within the following pause are counted; the next logged
    record says how many were left out, and the pause after it is twice as long. So the lines and
    their ``left_out`` add up to the number of records, and the number of lines grows with the
    logarithm of a flood's length. After a pause without records, the next one counts as the first
    again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opdispatch_server.log_fields import Event

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 64.0
"""The longest pause between two similar lines, in seconds."""

_MOST_REMEMBERED = 1024

FLOODS: Final = frozenset(
    {
        Event.INTERNAL_ERROR,
        Event.ACCESS_REFUSED,
        Event.LANE_CLOSED,
        Event.CONNECTION_REFUSED,
        Event.LIBRARY_LOAD_FAILED,
        Event.SLOW_CALL,
        Event.VALUE_BY_HOST,
    }
)
"""The events that callers can cause as often as they like."""


@dataclass(slots=True)
class Repetition:
    """The state of a group of similar records. See Note [Records that are alike]."""

    pause: float = FIRST_PAUSE / 2
    next_at: float = float("-inf")
    left_out: int = 0

    def is_due(self, now: float) -> bool:
        """Return whether one may be logged now."""
        return now >= self.next_at

    def log_one(self, now: float) -> int:
        """Record that one is logged now; return how many were left out before it."""
        if now >= self.next_at + self.pause:  # there was none for a while
            self.pause = FIRST_PAUSE / 2
        left_out, self.left_out = self.left_out, 0
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        self.next_at = now + self.pause
        return left_out


class FloodFilter(logging.Filter):
    """Filters out most of many similar records of the events in ``FLOODS``.

    ``_lock`` guards ``_known``: handlers filter before they acquire their own lock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[object, ...], Repetition] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged; if so, it says how many before it were not."""
        event = getattr(record, "event", "")
        if event not in FLOODS:
            return True
        error = type(record.exc_info[1]).__name__ if record.exc_info else ""
        about = tuple(getattr(record, name, "") for name in ("operator", "library", "interpreter"))
        key = (event, record.msg if record.args else "", error, *about)
        already = getattr(record, "left_out", 0)  # set by an interpreter
        with self._lock:
            known = self._known.setdefault(key, Repetition())
            self._known.move_to_end(key)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
            now = self._clock()
            if not known.is_due(now):
                known.left_out += 1 + already
                return False
            left_out = known.log_one(now)
        if left_out:
            record.left_out = left_out + already
            record.msg = f"{record.getMessage()} ({left_out} like it were left out before)"
            record.args = ()
        return True
