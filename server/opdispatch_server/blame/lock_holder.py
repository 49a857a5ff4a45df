"""Which thread of a silent interpreter keeps the interpreter lock, as far as the system can tell.

Of Python's threads that run something, those that wait for the lock wake up every 5 ms to ask for
it. The one that has it computes, or sleeps in C and does neither.
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
"""Has an interpreter print the stacks of its threads, also while the lock is kept."""

PROC = Path("/proc")
# One that asks for the lock does so 200 times a second, on a machine that is not busy.
_ASKS_PER_SECOND = 20.0
# The share of the time that a thread which computes gets at least, on a machine that is busy.
_COMPUTES = 0.1
_MUCH_MORE = 3.0
_SHORTEST_LOOK = 0.2
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


class ThreadTimes(NamedTuple):
    """The counters of a thread: seconds of CPU, and voluntary context switches."""

    cpu: float
    sleeps: int


class LockHolder:
    """Watches the threads of one process, from its first silence on."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._folder = proc / str(pid)
        self._first: dict[int, tuple[float, ThreadTimes]] = {}

    @property
    def is_stopped(self) -> bool:
        """Whether the process has been stopped, as by SIGSTOP: no thread in it keeps anything."""
        with suppress(OSError, IndexError):
            # The name before it, in brackets, may contain anything.
            return (self._folder / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def find(self, flights: Sequence[Flight]) -> Flight | None:
        """Return the one of ``flights`` whose thread has the lock.

        None if that is not known, or not yet.

        To be asked again and again: threads are compared with what they were the first time.
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
    """Return the flight that has the lock, by CPU seconds and sleeps per second of each."""
    if not rates:
        return None
    busiest = max(rates, key=lambda flight: rates[flight][0])
    others = [cpu for flight, (cpu, _) in rates.items() if flight is not busiest]
    cpu = rates[busiest][0]
    if cpu >= _COMPUTES and cpu >= _MUCH_MORE * max(others, default=0.0):
        return busiest
    quiet = [flight for flight, (_, sleeps) in rates.items() if sleeps < _ASKS_PER_SECOND]
    return quiet[0] if len(quiet) == 1 else None
