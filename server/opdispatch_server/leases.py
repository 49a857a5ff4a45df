"""Leases: an interpreter that has not been heard of for three heartbeats counts as hung."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

MISSED_HEARTBEATS = 3
# How often the leases are looked at, and so how late a hang may be noticed.
LOOKS_PER_HEARTBEAT = 5


class AttentiveClock:
    """Counts the seconds in which the daemon has listened.

    A daemon that was stopped, starved or on a laptop that slept has not heard its interpreters
    either: of such a gap only ``longest_step`` counts, and by its next step the daemon has
    read what has come meanwhile.
    """

    def __init__(self, longest_step: float) -> None:
        self.now = 0.0
        self._longest_step = longest_step
        self._last: float | None = None

    def advance(self, moment: float) -> None:
        """Notes that it is that moment of a monotonic clock."""
        if self._last is not None:
            self.now += min(max(moment - self._last, 0.0), self._longest_step)
        self._last = moment


class Lease:
    """One interpreter's right to count as alive."""

    def __init__(self, clock: AttentiveClock, heartbeat: float) -> None:
        self._clock = clock
        self._term = MISSED_HEARTBEATS * heartbeat
        self._renewed = clock.now
        self._suspensions = 0

    def renew(self) -> None:
        """It has been heard of."""
        self._renewed = self._clock.now

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within it, silence is no fault: something else limits how long it may last."""
        self._suspensions += 1
        try:
            yield
        finally:
            self._suspensions -= 1
            self.renew()

    @property
    def silence(self) -> float:
        """The seconds since it was last heard of."""
        return self._clock.now - self._renewed

    @property
    def is_lost(self) -> bool:
        """Whether it has been silent for too long."""
        return not self._suspensions and self.silence > self._term


class Lessee(Protocol):
    """Whoever holds a lease; None for one that sends no heartbeats."""

    @property
    def lease(self) -> Lease | None:
        """The lease."""


HolderT = TypeVar("HolderT", bound=Lessee)


class LeaseWatch:
    """Looks at the leases again and again; a task runs ``run``. Belongs to the event loop."""

    def __init__(self, heartbeat: float) -> None:
        self.heartbeat = heartbeat
        self._pause = heartbeat / LOOKS_PER_HEARTBEAT
        # A loop that is merely busy wakes late: twice the pause is still attention.
        self._clock = AttentiveClock(2 * self._pause)

    def grant(self) -> Lease:
        """A lease that begins now."""
        return Lease(self._clock, self.heartbeat)

    async def run(
        self,
        holders: Callable[[], Iterable[HolderT]],
        on_lost: Callable[[HolderT, float], None],
    ) -> None:
        """Calls ``on_lost``, with the seconds of silence, for every holder of a lost lease."""
        loop = asyncio.get_running_loop()
        while True:
            self._clock.advance(loop.time())
            for holder in holders():
                if holder.lease is not None and holder.lease.is_lost:
                    on_lost(holder, holder.lease.silence)
            await asyncio.sleep(self._pause)
