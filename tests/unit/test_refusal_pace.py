"""Those who are refused again and again wait for it, each address by itself."""

from __future__ import annotations

import pytest

from opdispatch_server.access.refusal_pace import (
    AT_ONCE,
    LONGEST,
    MOST_DELAYED,
    PER_SECOND,
    RefusalPace,
)

PEER = "ipv4:10.0.0.7:{}".format


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_some_are_refused_at_once_and_then_at_a_pace():
    clock = Clock()
    pace = RefusalPace(clock)
    assert [pace.delay(PEER(n)) for n in range(AT_ONCE)] == [0.0] * AT_ONCE
    delays = [pace.delay(PEER(n)) for n in range(10)]
    assert delays == pytest.approx([n / PER_SECOND for n in range(1, 11)])
    assert pace.delay("ipv4:10.0.0.8:1") == 0.0
    clock.now += 10 / PER_SECOND
    assert pace.delay(PEER(1)) == pytest.approx(1 / PER_SECOND)
    clock.now += AT_ONCE / PER_SECOND + LONGEST
    assert pace.delay(PEER(1)) == 0.0


def test_a_flood_is_answered_after_a_second_and_forgotten_soon():
    clock = Clock()
    pace = RefusalPace(clock)
    delays = [pace.delay(PEER(n)) for n in range(10 * AT_ONCE)]
    assert max(delays) == delays[-1] == LONGEST
    clock.now += LONGEST + 1 / PER_SECOND
    assert pace.delay(PEER(1)) == pytest.approx(0.0, abs=1e-9)


def test_one_that_asks_again_when_it_is_answered_gets_the_pace():
    clock = Clock()
    pace = RefusalPace(clock)
    began, count = clock.now, 1000
    for _ in range(count):
        clock.now += pace.delay(PEER(1))
    assert clock.now - began == pytest.approx((count - AT_ONCE) / PER_SECOND, rel=0.01)


def test_a_limited_number_waits():
    pace = RefusalPace(Clock())
    for n in range(2 * AT_ONCE):
        pace.delay(PEER(n))
    pace.waiting = MOST_DELAYED
    assert pace.delay(PEER(1)) == 0.0


def test_addresses_are_remembered_in_bounded_memory():
    pace = RefusalPace(Clock())
    for n in range(10_000):
        pace.delay(f"ipv6:[::{n:x}]:1")
    assert len(pace._full_at) < 5_000
