"""When a thread looks again and again, and when it goes to sleep at once."""

from __future__ import annotations

import os

import pytest

from opdispatch_wire.lanes.brief_spin import LOOKS, BriefSpin

US = 1e-6
WAKING = 60 * US


class World:
    """Time that passes by a microsecond at each look at it, and what comes in it.

    To be woken takes WAKING; while others have the cores, to look delays what is looked for.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.delay = 0.0

    def clock(self) -> float:
        self.now += US
        return self.now

    def wait(self, spin: BriefSpin, seconds: float) -> int:
        """How often a thread looks for what comes after so many seconds."""
        comes, looks = self.now + seconds, 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            self.now += US
            return self.now >= comes + self.delay

        def sleep(result: str) -> str:
            if looks == 0 or not look():
                self.now = max(self.now, comes + (self.delay if looks else 0.0)) + WAKING
            return result

        assert spin.wait(look, sleep, "it has come") == "it has come"
        return max(looks - 1, 0)

    def wait_often(self, spin: BriefSpin, seconds: float, count: int = 100) -> list[int]:
        return [self.wait(spin, seconds) for _ in range(count)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("opdispatch_wire.lanes.brief_spin.time.perf_counter", world.clock)
    return world


@pytest.fixture
def spin(monkeypatch: pytest.MonkeyPatch) -> BriefSpin:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    return BriefSpin()


def share_of_looking(looks: list[int]) -> float:
    return sum(count > 0 for count in looks) / len(looks)


def test_first_wait_does_not_spin(spin: BriefSpin, world: World):
    assert world.wait(spin, 10 * US) == 0


def test_thread_spins_until_arrival_if_arrivals_are_soon(spin: BriefSpin, world: World):
    world.wait_often(spin, 30 * US)
    looks = world.wait_often(spin, 30 * US)
    assert share_of_looking(looks) > 0.9
    assert max(looks) == pytest.approx(30, abs=3)


def test_thread_spins_no_longer_than_sleeping_would_cost(spin: BriefSpin, world: World):
    world.wait_often(spin, 30 * US, 101)
    assert world.wait(spin, 1.0) == pytest.approx(LOOKS, abs=3)


def test_wait_rarely_spins_where_replies_come_late(spin: BriefSpin, world: World):
    world.wait_often(spin, 30 * US)
    world.wait_often(spin, 1e-3, 20)
    assert share_of_looking(world.wait_often(spin, 1e-3, 300)) < 0.05
    assert share_of_looking(world.wait_often(spin, 1e-3, 10_000)) < 0.01


@pytest.mark.parametrize("slowness", [1, 10])
def test_spin_is_the_same_on_a_slow_machine(
    spin: BriefSpin, world: World, monkeypatch: pytest.MonkeyPatch, slowness: int
):
    monkeypatch.setattr("tests.unit.test_wire_brief_spin.US", US * slowness)
    monkeypatch.setattr("tests.unit.test_wire_brief_spin.WAKING", WAKING * slowness)
    world.wait_often(spin, 30 * US)
    assert share_of_looking(world.wait_often(spin, 30 * US)) > 0.9


def test_wait_does_not_spin_where_all_cores_have_work(
    spin: BriefSpin, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 2.5, 2.5))
    world.wait_often(spin, 30 * US, 300)
    assert share_of_looking(world.wait_often(spin, 30 * US, 300)) == 0
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 1.5, 1.5))
    world.wait_often(spin, 30 * US, 300)
    assert share_of_looking(world.wait_often(spin, 30 * US, 300)) > 0.9


def test_one_long_rest_does_not_count_for_ever(spin: BriefSpin, world: World):
    world.wait_often(spin, 30 * US)
    world.wait(spin, 3600.0)
    assert share_of_looking(world.wait_often(spin, 30 * US)) > 0.9


def test_thread_sleeps_if_spinning_delays_arrivals(spin: BriefSpin, world: World):
    world.wait_often(spin, 30 * US)
    world.delay = 2 * WAKING
    world.wait_often(spin, 30 * US)
    assert share_of_looking(world.wait_often(spin, 30 * US)) < 0.1


def test_thread_spins_again_once_spinning_delays_nothing(spin: BriefSpin, world: World):
    world.delay = 2 * WAKING
    world.wait_often(spin, 30 * US)
    world.delay = 0.0
    world.wait_often(spin, 30 * US, 1000)
    assert share_of_looking(world.wait_often(spin, 30 * US)) > 0.9


def test_a_wait_for_what_never_came_does_not_count(spin: BriefSpin, world: World):
    def sleep() -> None:
        world.now += 3600.0

    world.wait_often(spin, 30 * US)
    for _ in range(10):
        spin.wait(lambda: True, sleep)
    assert share_of_looking(world.wait_often(spin, 30 * US)) > 0.9


def test_a_process_with_one_core_never_looks(monkeypatch: pytest.MonkeyPatch, world: World):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert share_of_looking(world.wait_often(BriefSpin(), 30 * US)) == 0
