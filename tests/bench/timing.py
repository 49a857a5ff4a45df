"""Timing of short calls side by side on a noisy machine.

The contestants take turns, many short rounds each, so that a slow spell of the machine hits all of
them; the median over the rounds is quoted, or the least, where two that differ by little are
compared. Calls that wait for no other thread may be timed by the thread's own clock, which stands
still while others have the core.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

ROUNDS = 41
ROUND_SECONDS = 0.01
CALLS_OF_MANY = 200

Clock = Callable[[], float]


def calls_per_round(call: Callable[[], object], clock: Clock = time.perf_counter) -> int:
    """How many calls last about one round."""
    call()  # the first one may take as long as a round by itself
    count = 1
    while True:
        seconds = time_calls(call, count, clock)
        if seconds > ROUND_SECONDS:
            return count
        count *= 2


def time_calls(call: Callable[[], object], count: int, clock: Clock = time.perf_counter) -> float:
    """Seconds for ``count`` calls, the loop included."""
    repeats = range(count)
    start = clock()
    for _ in repeats:
        call()
    return clock() - start


def median_seconds(
    contestants: Mapping[str, Callable[[], object]], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The median seconds of one call of each contestant, an empty call's share taken off."""
    return over_empty(_rounds(contestants, clock, 1), statistics.median)


def least_seconds(
    contestants: Mapping[str, Callable[[], object]], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The least seconds of one call of each contestant, an empty call's share taken off."""
    return over_empty(short_rounds(contestants, clock), min)


def least_seconds_of_many(
    contestants: Mapping[str, Callable[[], object]], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """``least_seconds`` for hundreds of contestants: each round is of as many calls."""
    counts = dict.fromkeys(["", *contestants], CALLS_OF_MANY)
    return over_empty(_take_turns({"": _nothing, **contestants}, clock, counts, 2 * ROUNDS), min)


def short_rounds(
    contestants: Mapping[str, Callable[[], object]], clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """The seconds of one call of each contestant in each round, and of an empty call as ``""``.

    Rounds are a tenth as long as others, and ten times as many: more of them are left alone.
    """
    return _rounds(contestants, clock, 10)


def over_empty(
    rounds: Mapping[str, list[float]], chosen: Callable[[list[float]], float]
) -> dict[str, float]:
    """Return each contestant's chosen time, without that of an empty call."""
    empty = chosen(rounds[""])
    return {name: chosen(times) - empty for name, times in rounds.items() if name}


def _rounds(
    contestants: Mapping[str, Callable[[], object]], clock: Clock, parts: int
) -> dict[str, list[float]]:
    contestants = {"": _nothing, **contestants}
    counts = {name: calls_per_round(call, clock) // parts + 1 for name, call in contestants.items()}
    return _take_turns(contestants, clock, counts, ROUNDS * parts)


def _take_turns(
    contestants: Mapping[str, Callable[[], object]],
    clock: Clock,
    counts: Mapping[str, int],
    num_rounds: int,
) -> dict[str, list[float]]:
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.disable()
    try:
        for _ in range(num_rounds):
            for name, call in contestants.items():
                rounds[name].append(time_calls(call, counts[name], clock) / counts[name])
    finally:
        gc.enable()
    return rounds


def _nothing() -> None:
    """Cost as a contestant's lambda without the call inside it."""
