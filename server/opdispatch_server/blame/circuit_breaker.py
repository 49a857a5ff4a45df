"""When calls of an operator that brings interpreters down are refused, and let through again.

A circuit breaker for each operator: closed, it lets every call through; from the second death in a
row on it is open, for a time that doubles with each; then it lets one call through, the probe, and
closes once that has gone well. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

OPENS_AFTER = 2
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
# A probe of which nothing is heard for so long, in seconds, makes room for another one.
PROBE_PATIENCE = 30.0


@dataclass(slots=True)
class CircuitBreaker:
    """Of one operator. ``now`` is a time in seconds, of any clock that grows."""

    deaths: int = 0
    """In a row, of which the operator was the culprit."""
    open_until: float = 0.0
    _probe_until: float = 0.0

    def note_death(self, now: float) -> None:
        """Record that its kernel has brought an interpreter down."""
        self.deaths += 1
        self._probe_until = 0.0
        if self.deaths >= OPENS_AFTER:
            # A power that is no larger than need be: deaths may be many.
            doublings = min(self.deaths - OPENS_AFTER, 10)
            self.open_until = now + min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE)

    def note_success(self) -> None:
        """Record a successful call."""
        self.deaths //= 2
        self._probe_until = self.open_until = 0.0

    def note_nothing(self) -> None:
        """Record a probe without a verdict.

        Its interpreter has died of something else, or it has never started.
        """
        self._probe_until = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether every call is let through."""
        return self.deaths < OPENS_AFTER

    def try_pass(self, now: float) -> float:
        """Return 0 if a call may go on, as the probe if the circuit is not closed.

        Else the seconds until the next try.
        """
        if self.is_closed:
            return 0.0
        if now < self.open_until:
            return self.open_until - now
        if now < self._probe_until:
            return FIRST_PAUSE
        self._probe_until = now + PROBE_PATIENCE
        return 0.0
