"""Leases: an interpreter that has not been heard of for three heartbeats is busy, or hangs.

Not counted is the time in which it could not say anything: because the daemon did not listen, or
because other processes had all the cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from opdispatch_server.daemon.interpreters.starvation import StarvationWatch

MISSED_HEARTBEATS = 3
# How often the leases are looked at while one is late, and so how late a hang may be noticed.
LOOKS_PER_HEARTBEAT = 5
# From so many heartbeats of silence on, it is late, and asked what keeps it from sending one.
_LATE = 1.1


class AttentiveClock:
    """Counts the seconds in which the daemon has listened.

    A daemon that was stopped, starved or on a laptop that slept has not heard its interpreters
    either: of such a gap only ``longest_step`` counts, and by its next step the daemon has
    read what has come meanwhile.
    """

    def __init__(self, longest_step: float) -> None:
        self.now = 0.0
        self.longest_step = longest_step
        self._last: float | None = None

    def advance(self, moment: float) -> None:
        """Advance to that moment of a monotonic clock."""
        self.now = max(self.at(moment), self.now)
        self._last = moment

    def at(self, moment: float) -> float:
        """Return what this clock shows at a moment not far from the last that it advanced to."""
        last = moment if self._last is None else self._last
        return self.now + min(moment - last, self.longest_step)


class Lease:
    """One interpreter's right to count as alive."""

    def __init__(
        self, clock: AttentiveClock, heartbeat: float, starvation: StarvationWatch | None = None
    ) -> None:
        """Watch the lease; ``starvation`` is that of its process, if that is on this machine."""
        self._clock = clock
        self._heartbeat = heartbeat
        self._starvation = starvation
        self._looked = clock.now
        self._renewed = clock.now
        self._suspensions = 0

    def renew(self, moment: float | None = None) -> None:
        """Renew the lease: the interpreter was heard of, at that moment; None: just now."""
        now = self._clock.now if moment is None else self._clock.at(moment)
        self._renewed = max(now, self._renewed)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the lease in the block: its silence is limited by something else."""
        self._suspensions += 1
        try:
            yield
        finally:
            self._suspensions -= 1
            self.renew()

    def look(self) -> None:
        """Excuse the time since the last look, if the interpreter could not run in it."""
        step, self._looked = self._clock.now - self._looked, self._clock.now
        if self._starvation is None or not self.is_late:
            return
        if self._starvation.was_starved(step):
            self._renewed += step

    @property
    def silence(self) -> float:
        """The seconds since it was last heard of, in which it could have said something."""
        return max(self._clock.now - self._renewed, 0.0)

    def silence_at(self, moment: float) -> float:
        """Return the silence until that moment, which may be later than the last look."""
        return max(self._clock.at(moment) - self._renewed, 0.0)

    @property
    def is_late(self) -> bool:
        """Whether a heartbeat is overdue."""
        return self.silence >= _LATE * self._heartbeat

    @property
    def is_lost(self) -> bool:
        """Whether it has been silent for too long."""
        return not self._suspensions and self.silence > MISSED_HEARTBEATS * self._heartbeat


class Lessee(Protocol):
    """The holder of a lease; the lease is None for one that sends no heartbeats."""

    @property
    def lease(self) -> Lease | None:
        """The lease."""

    @property
    def beat(self) -> float:
        """The time of its last heartbeat that was not sent but recorded; 0: none was."""


HolderT = TypeVar("HolderT", bound=Lessee)


class LeaseWatch:
    """Looks at the leases again and again; a task runs ``run``. Belongs to the event loop."""

    def __init__(self, heartbeat: float) -> None:
        self.heartbeat = heartbeat
        self._step = heartbeat / LOOKS_PER_HEARTBEAT
        self._clock = AttentiveClock(2 * self._step)

    def grant(self, starvation: StarvationWatch | None = None) -> Lease:
        """Return a lease that begins now; see ``Lease``."""
        lease = Lease(self._clock, self.heartbeat, starvation)
        lease.renew(time.monotonic())
        return lease

    async def run(
        self,
        holders: Callable[[], Iterable[HolderT]],
        on_silent: Callable[[HolderT, float], None],
        on_heard: Callable[[HolderT], None],
    ) -> None:
        """Call ``on_silent``, with the seconds of silence, for every holder of a lost lease, and
        ``on_heard`` for all others, at every look.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._clock.advance(loop.time())
            pause = self.heartbeat
            for holder in holders():
                if holder.lease is None:
                    continue
                holder.lease.renew(holder.beat)
                holder.lease.look()
                if holder.lease.is_late:
                    pause = self._step
                if holder.lease.is_lost:
                    on_silent(holder, holder.lease.silence)
                else:
                    on_heard(holder)
            # A loop that is merely busy wakes late: so much longer is still attention.
            self._clock.longest_step = pause + self._step
            await asyncio.sleep(pause)
