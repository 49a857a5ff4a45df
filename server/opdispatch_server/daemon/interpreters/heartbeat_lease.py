"""Leases: an interpreter that has missed three heartbeats is busy or hangs.

Time in which it could not send heartbeats does not count: when the daemon was not listening, or
other processes occupied all cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from opdispatch_server.daemon.interpreters.starvation import StarvationWatch

MISSED_HEARTBEATS = 3
# Checks per heartbeat interval while a lease is late: they bound the delay in noticing a hang.
LOOKS_PER_HEARTBEAT = 5
# After so many missed heartbeats a lease is late, and the daemon checks what blocks the
# interpreter.
_LATE = 1.1


class AttentiveClock:
    """A clock of the seconds in which the daemon listened.

    A daemon that was stopped, starved, or on a laptop that slept has not listened to its
    interpreters either: of such a gap only ``longest_step`` counts, and by its next step the daemon
    has read the messages that arrived meanwhile.
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
        """Return the clock's time for a moment close to the last one that it advanced to."""
        last = moment if self._last is None else self._last
        return self.now + min(moment - last, self.longest_step)


class Lease:
    """An interpreter's right to count as alive, renewed by its heartbeats."""

    def __init__(
        self, clock: AttentiveClock, heartbeat: float, starvation: StarvationWatch | None = None
    ) -> None:
        """Start the lease; ``starvation`` watches the interpreter's process, if on this machine."""
        self._clock = clock
        self._heartbeat = heartbeat
        self._starvation = starvation
        self._looked = clock.now
        self._renewed = clock.now
        self._suspensions = 0

    def renew(self, moment: float | None = None) -> None:
        """Renew the lease: a heartbeat was sent at ``moment``, or just now if None."""
        now = self._clock.now if moment is None else self._clock.at(moment)
        self._renewed = max(now, self._renewed)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the lease during the block, in which something else limits the silence."""
        self._suspensions += 1
        try:
            yield
        finally:
            self._suspensions -= 1
            self.renew()

    def look(self) -> None:
        """Exclude the time since the previous look from the silence if the process was starved."""
        step, self._looked = self._clock.now - self._looked, self._clock.now
        if self._starvation is None or not self.is_late:
            return
        if self._starvation.was_starved(step):
            self._renewed += step

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat, not counting time in which none could be sent."""
        return max(self._clock.now - self._renewed, 0.0)

    def silence_at(self, moment: float) -> float:
        """Return the silence until ``moment``, which may be later than the last look."""
        return max(self._clock.at(moment) - self._renewed, 0.0)

    @property
    def is_late(self) -> bool:
        """Whether a heartbeat is overdue."""
        return self.silence >= _LATE * self._heartbeat

    @property
    def is_lost(self) -> bool:
        """Whether the silence has exceeded the limit."""
        return not self._suspensions and self.silence > MISSED_HEARTBEATS * self._heartbeat


class Lessee(Protocol):
    """The holder of a lease; the lease is None for one that sends no heartbeats."""

    @property
    def lease(self) -> Lease | None:
        """The lease."""

    @property
    def beat(self) -> float:
        """When it last recorded a heartbeat in shared memory; 0: never."""


HolderT = TypeVar("HolderT", bound=Lessee)


class LeaseWatch:
    """Checks the leases periodically, in a task that runs ``run``. For the event loop only."""

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
        """Check holders periodically: call ``on_silent`` if a lease is lost, else ``on_heard``.

        ``on_silent`` is also given the seconds of silence.
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
            # A loop that is merely busy wakes late: up to this much still counts as listening.
            self._clock.longest_step = pause + self._step
            await asyncio.sleep(pause)
