"""The records of a race's threads, which ``report`` evaluates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opdispatch.errors import OpdispatchError
from opdispatch_stress.history import Read, Write


@dataclass
class RaceLog:
    """The observations of one thread; those of all threads, merged, are those of the race."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    call_seconds: list[float] = field(default_factory=list)
    load_seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    """Requests that failed because of the race's own kills, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """Requests that failed without cause, by the error's message."""
    wrong_answers: list[str] = field(default_factory=list)

    def add(self, other: RaceLog) -> None:
        """Add the observations of another log."""
        self.writes += other.writes
        self.reads += other.reads
        self.call_seconds += other.call_seconds
        self.load_seconds += other.load_seconds
        self.counts.update(other.counts)
        self.excused.update(other.excused)
        self.errors.update(other.errors)
        self.wrong_answers += other.wrong_answers

    def add_error(self, what: str, error: OpdispatchError, *, excused: bool = False) -> None:
        """Record a failed request; `excused` if a kill caused it."""
        if excused:
            self.excused[f"{what}: {type(error).__name__}"] += 1
        else:
            self.errors[f"{what}: {type(error).__name__}: {error}"] += 1
