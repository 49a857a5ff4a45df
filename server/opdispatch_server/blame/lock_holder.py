"""Which thread of a silent interpreter holds the interpreter lock, as far as the system can tell.

Python threads that wait for the lock wake up every 5 ms to request it. The thread that holds it
computes, or sleeps in C and does neither.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from opdispatch_server.blame.flight_record import Flight

DUMP_SIGNAL = signal.SIGUSR2
"""Makes an interpreter print the stacks of its threads, even while the lock is held."""

PROC = Path("/proc")
# A thread that waits for the lock wakes up 200 times a second, on an idle machine.
_ASKS_PER_SECOND = 20.0
# The least share of time that a computing thread gets, on a busy machine.
_COMPUTES = 0.1
_MUCH_MORE = 3.0
_SHORTEST_LOOK = 0.2
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


class ThreadTimes(NamedTuple):
    """The counters of a thread: CPU seconds, and voluntary context switches."""

    cpu: float
    sleeps: int


class LockHolder:
    """Watches the threads of one process, from its first silence on."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._folder = proc / str(pid)
        self._first: dict[int, tuple[float, ThreadTimes]] = {}

    @property
    def is_stopped(self) -> bool:
        """Whether the process has been stopped, as by SIGSTOP: then no thread holds the lock."""
        with suppress(OSError, IndexError):
            # The name before the fields, in parentheses, may contain any character.
            return (self._folder / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def find(self, flights: Sequence[Flight]) -> Flight | None:
        """Return the run in ``flights`` whose thread holds the lock.

        None if that is unknown, or not known yet. To be called repeatedly: threads are compared
        with their state at the first call.
        """
        now = time.monotonic()
        rates: dict[Flight, tuple[float, float]] = {}
        for flight in flights:
            times = self._read(flight.thread)
            if times is None:
                continue
            since, first = self._first.setdefault(flight.thread, (now, times))
            if (seconds := now - since) >= _SHORTEST_LOOK:
                rates[flight] = (
                    (times.cpu - first.cpu) / seconds,
                    (times.sleeps - first.sleeps) / seconds,
                )
        return choose_holder(rates)

    def _read(self, thread: int) -> ThreadTimes | None:
        folder = self._folder / "task" / str(thread)
        with suppress(OSError, ValueError, IndexError):
            run = int((folder / "schedstat").read_text().split()[0])
            found = _SWITCHES.search((folder / "status").read_text())
            return ThreadTimes(run / 1e9, int(found[1]) if found else 0)
        return None


def choose_holder(rates: dict[Flight, tuple[float, float]]) -> Flight | None:
    """Return the run that holds the lock, by each one's CPU seconds and sleeps per second."""
    if not rates:
        return None
    busiest = max(rates, key=lambda flight: rates[flight][0])
    others = [cpu for flight, (cpu, _) in rates.items() if flight is not busiest]
    cpu = rates[busiest][0]
    if cpu >= _COMPUTES and cpu >= _MUCH_MORE * max(others, default=0.0):
        return busiest
    quiet = [flight for flight, (_, sleeps) in rates.items() if sleeps < _ASKS_PER_SECOND]
    return quiet[0] if len(quiet) == 1 else None
