"""When a thread looks again and again, and when it goes to sleep at once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from opdispatch_wire.brief_spin import SPIN_SECONDS, BriefSpin

NEVER = 1_000_000


class Clock:
    """Time that passes by a microsecond whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("opdispatch_wire.brief_spin.time.perf_counter", clock)
    yield clock
    monkeypatch.undo()


@pytest.fixture
def spin(monkeypatch: pytest.MonkeyPatch) -> BriefSpin:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    return BriefSpin()


def looks_of(spin: BriefSpin, clock: Clock, *, comes_after: int, sleeps: float = 0.0) -> int:
    """How often it is looked for something that comes at a look, or else after a sleep."""
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return looks > comes_after

    spin.before_sleeping(look)
    clock.now += sleeps
    spin.after_waiting()
    return looks


def test_at_first_nobody_looks(spin: BriefSpin, clock: Clock):
    assert looks_of(spin, clock, comes_after=0) == 0


def test_where_things_come_soon_they_are_looked_for_until_they_come(spin: BriefSpin, clock: Clock):
    for _ in range(20):
        looks_of(spin, clock, comes_after=0, sleeps=50e-6)
    assert looks_of(spin, clock, comes_after=30) == 31


def test_but_not_for_longer_than_sleep_would_cost(spin: BriefSpin, clock: Clock):
    for _ in range(20):
        looks_of(spin, clock, comes_after=0)
    assert looks_of(spin, clock, comes_after=NEVER) == pytest.approx(SPIN_SECONDS * 1e6, abs=2)


def test_where_they_come_late_nobody_looks_any_more(spin: BriefSpin, clock: Clock):
    for _ in range(20):
        looks_of(spin, clock, comes_after=0)
    for _ in range(20):
        looks_of(spin, clock, comes_after=NEVER, sleeps=1e-3)
    assert looks_of(spin, clock, comes_after=0) == 0


def test_one_long_rest_does_not_count_for_ever(spin: BriefSpin, clock: Clock):
    looks_of(spin, clock, comes_after=0, sleeps=3600.0)
    for _ in range(20):
        looks_of(spin, clock, comes_after=0, sleeps=50e-6)
    assert looks_of(spin, clock, comes_after=5) == 6


def test_a_process_with_one_core_never_looks(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    spin = BriefSpin()
    for _ in range(20):
        looks_of(spin, clock, comes_after=0)
    assert looks_of(spin, clock, comes_after=NEVER) == 0
