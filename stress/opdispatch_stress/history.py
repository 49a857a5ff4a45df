"""Checks whether one registry can explain the observations of many threads. No I/O.

Each library is a register: a load writes the version's stamp into it, an unload writes
"absent", a call reads it. A read must return the value that some write left there at some moment
during the read. A write may have taken effect at any moment between its start and its end.

There are no false positives: a reported violation is consistent with no order of the events.
Violations that involve at most two writes and two reads are found first, each with its reason. If
there are none, ``linearizability`` searches for an order of all events.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from opdispatch_stress.linearizability import (
    UNKNOWN,
    Operation,
    UnexplainedError,
    check_linearizable,
)

ABSENT = None
"""The value of a register while its library is not loaded."""

PRESENT = -1
"""The value of a read that only shows that some version is active; stamps are not negative."""

Stamp = int | None

# Limit of steps in the search for an order: one or two seconds for each library.
_MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Write:
    """A load or unload that changed, or may have changed, the results of a library."""

    library: str
    value: Stamp
    started: float
    finished: float | None
    """None if it is unknown when, or whether, it took effect, because there was no reply."""
    certain: bool = True
    """False if it may not have taken effect; if it did, not after it finished."""


@dataclass(frozen=True, slots=True)
class Read:
    """The result of a call, or another observation of which version was active."""

    library: str
    value: Stamp
    started: float
    finished: float


def find_violations(writes: Iterable[Write], reads: Iterable[Read]) -> list[str]:
    """Return descriptions of the reads that no order of the writes explains.

    Every library is initially absent.
    """
    writes_of: dict[str, list[Write]] = defaultdict(list)
    reads_of: dict[str, list[Read]] = defaultdict(list)
    for write in writes:
        writes_of[write.library].append(write)
    for read in reads:
        reads_of[read.library].append(read)
    return [
        violation
        for library in sorted(reads_of)
        for violation in _Register(writes_of[library], reads_of[library]).find_violations()
        or _find_missing_order(writes_of[library], reads_of[library])
    ]


def _find_missing_order(writes: list[Write], reads: list[Read]) -> list[str]:
    """Return a description of one library's events if no order explains them; else no text."""
    history = [*map(_as_operation, writes), *map(_as_operation, reads)]
    try:
        check_linearizable(history, ABSENT, _register_step, looks={"read"}, most=_MOST_STEPS)
    except UnexplainedError as error:
        return [str(error)]
    return []


def _as_operation(event: Write | Read) -> Operation:
    started, finished = event.started, event.finished
    if isinstance(event, Read):
        return Operation(event.library, "read", None, event.value, started, event.finished)
    if finished is None:
        return Operation(event.library, "write", event.value, UNKNOWN, started, math.inf)
    kind = "write" if event.certain else "perhaps write"
    return Operation(event.library, kind, event.value, None, started, finished)


def _register_step(state: Hashable, kind: str, argument: Any, response: Any) -> Iterable[Hashable]:
    """Apply one step of a register, the model for ``check_linearizable``."""
    if kind == "read":
        shown = state is not ABSENT if response == PRESENT else state == response
        return [state] if shown else []
    return [argument] if kind == "write" else [state, argument]


class _Register:
    """The history of one library."""

    def __init__(self, writes: list[Write], reads: list[Read]) -> None:
        beginning = Write("", ABSENT, -math.inf, -math.inf)
        self._writes = sorted([beginning, *writes], key=lambda write: write.started)
        self._reads = reads
        self._writers: dict[Stamp, list[Write]] = defaultdict(list)
        for write in self._writes:
            self._writers[write.value].append(write)
        self._first_read = self._find_first_reads()
        self._starts = [write.started for write in self._writes]
        # Entry i: the earliest time at which any of the writes from index i on was certainly done.
        self._done_from = [math.inf] * (len(self._writes) + 1)
        for place in reversed(range(len(self._writes))):
            done = self._surely_done(self._writes[place])
            self._done_from[place] = min(done, self._done_from[place + 1])

    def find_violations(self) -> list[str]:
        return [
            _describe(read, self._tell_why_not(read))
            for read in self._reads
            if not any(self._explains(write, read) for write in self._candidates(read.value))
        ]

    def _candidates(self, value: Stamp) -> Iterable[Write]:
        """Return the writes that may have written ``value``."""
        if value == PRESENT:
            return (write for write in self._writes if write.value is not ABSENT)
        return self._writers.get(value, ())

    def _explains(self, write: Write, read: Read) -> bool:
        """Return whether the read may have returned this write's value."""
        if write.started > read.finished:
            return False
        # Overwritten: another write began when this one was done, and was done before the read
        # began.
        return self._done_from[self._first_after(write)] >= read.started

    def _first_after(self, write: Write) -> int:
        """Return the index of the first write that began after this one had taken effect."""
        over = self._surely_done(write)
        if write.finished is not None:  # by then, or never
            over = min(over, write.finished)
        return bisect_right(self._starts, over)

    def _tell_why_not(self, read: Read) -> str:
        """Return the reason, as text, why no write explains a read."""
        writes = list(self._candidates(read.value))
        if not writes:
            return "no racer has loaded that"
        begun = [write for write in writes if write.started <= read.finished]
        if not begun:
            return f"that was not loaded before {min(write.started for write in writes):.6f}"
        after = self._writes[max(map(self._first_after, begun)) :]
        follower = min(after, key=self._surely_done)
        what = "it was unloaded" if follower.value is ABSENT else f"version {follower.value} came"
        return f"{what} by {self._surely_done(follower):.6f}"

    def _surely_done(self, write: Write) -> float:
        """Return the time by which the write had certainly taken effect.

        That is its end, or the end of the first read that returned its value.
        """
        ended = write.finished if write.certain and write.finished is not None else math.inf
        # If several writes have the same value, it is unknown which one was read.
        is_only_writer = len(self._writers[write.value]) == 1
        return min(ended, self._first_read[write.value]) if is_only_writer else ended

    def _find_first_reads(self) -> dict[Stamp, float]:
        first: dict[Stamp, float] = defaultdict(lambda: math.inf)
        for read in self._reads:
            # Also for PRESENT, which no library has as its stamp.
            first[read.value] = min(first[read.value], read.finished)
        return first


def _describe(read: Read, why_not: str) -> str:
    when = f"between {read.started:.6f} and {read.finished:.6f}"
    if read.value is ABSENT:
        return f"{read.library} was gone {when}, though {why_not}"
    if read.value == PRESENT:
        return f"{read.library} was there {when}, though {why_not}"
    return f"{read.library} answered as version {read.value} {when}, though {why_not}"
