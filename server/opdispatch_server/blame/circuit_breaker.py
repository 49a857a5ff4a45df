"""Refusal of calls to an operator that brings interpreters down, and its end.

Each operator has a circuit breaker. Closed, it admits every call; from the second consecutive death
on it is open, for a time that doubles with each death; then it admits one call, the probe, and
closes if that succeeds. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

OPENS_AFTER = 2
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
# A probe without a result for so long, in seconds, makes room for another one.
PROBE_PATIENCE = 30.0


@dataclass(slots=True)
class CircuitBreaker:
    """The circuit breaker of one operator. ``now`` is a time in seconds, of any monotonic clock."""

    deaths: int = 0
    """Consecutive deaths of which the operator was the culprit."""
    open_until: float = 0.0
    _probe_until: float = 0.0

    def note_death(self, now: float) -> None:
        """Record that its kernel brought an interpreter down."""
        self.deaths += 1
        self._probe_until = 0.0
        if self.deaths >= OPENS_AFTER:
            # Bounds the exponent, because deaths may be many.
            doublings = min(self.deaths - OPENS_AFTER, 10)
            self.open_until = now + min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE)

    def note_success(self) -> None:
        """Record a successful call."""
        self.deaths //= 2
        self._probe_until = self.open_until = 0.0

    def note_nothing(self) -> None:
        """Record a probe without a result.

        Its interpreter died of something else, or the probe never started.
        """
        self._probe_until = 0.0

    @property
    def is_closed(self) -> bool:
        """Whether every call is admitted."""
        return self.deaths < OPENS_AFTER

    def try_pass(self, now: float) -> float:
        """Return 0 if a call may start, as the probe if the circuit is not closed.

        Otherwise return the seconds until the next probe.
        """
        if self.is_closed:
            return 0.0
        if now < self.open_until:
            return self.open_until - now
        if now < self._probe_until:
            return FIRST_PAUSE
        self._probe_until = now + PROBE_PATIENCE
        return 0.0
