"""The report of a race: rates, latencies and violated guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opdispatch_stress.history import find_violations
from opdispatch_stress.race_log import RaceLog

_PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of requests, in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class StressReport:
    """The outcome of one race."""

    seed: int
    seconds: float
    interpreters: int
    callers: int
    libraries: int
    operators: int
    """The number of operators of each library."""
    counts: dict[str, int]
    calls_per_second: float
    loads_per_second: float
    call_latencies_ms: Latencies | None
    load_latencies_ms: Latencies | None
    excused: dict[str, int]
    """Requests that failed because the race had killed an interpreter, by kind."""
    errors: dict[str, int]
    """Requests that failed without cause."""
    violations: list[str]
    """Results that no order of loads and unloads explains, and other faults.

    These are waiters that were forgotten, violated invariants, and resources that were left behind.
    """

    @property
    def ok(self) -> bool:
        """Whether the daemon kept all its guarantees."""
        return not self.errors and not self.violations


def summarize(
    log: RaceLog,
    *,
    seed: int,
    seconds: float,
    interpreters: int,
    callers: int,
    libraries: int,
    operators: int,
    aftermath: Sequence[str],
) -> StressReport:
    """Evaluate the observations of a race; `aftermath` lists the faults found after its end."""
    calls = len(log.call_seconds)
    return StressReport(
        seed=seed,
        seconds=round(seconds, 3),
        interpreters=interpreters,
        callers=callers,
        libraries=libraries,
        operators=operators,
        counts=dict(sorted(log.counts.items())),
        calls_per_second=round(calls / seconds, 1),
        loads_per_second=round(len(log.load_seconds) / seconds, 1),
        call_latencies_ms=_latencies(log.call_seconds),
        load_latencies_ms=_latencies(log.load_seconds),
        excused=dict(sorted(log.excused.items())),
        errors=dict(log.errors),
        violations=[
            *log.wrong_answers,
            *find_violations(log.writes, log.reads),
            *aftermath,
        ],
    )


def _latencies(seconds: Sequence[float]) -> Latencies | None:
    if not seconds:
        return None
    return Latencies(*(round(float(ms), 3) for ms in np.percentile(seconds, _PERCENTILES) * 1e3))
