"""Leases: who counts as hung, and who does not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import pytest

from opdispatch_server.daemon.interpreters.heartbeat_lease import AttentiveClock, Lease, LeaseWatch
from opdispatch_server.daemon.interpreters.starvation import StarvationWatch
from tests.waits import LONGEST_WAIT


def test_the_clock_counts_only_so_much_of_a_gap():
    clock = AttentiveClock(longest_step=0.2)
    for moment in (100.0, 100.1, 100.3, 160.0, 160.1):
        clock.advance(moment)
    assert clock.now == pytest.approx(0.1 + 0.2 + 0.2 + 0.1)


def test_the_clock_never_goes_back():
    clock = AttentiveClock(longest_step=1.0)
    for moment in (5.0, 4.0, 4.5):
        clock.advance(moment)
    assert clock.now == pytest.approx(0.5)


def listen(clock: AttentiveClock, seconds: int) -> None:
    """The daemon listens for that many seconds."""
    for _ in range(seconds):
        clock.advance(listen.moment)
        listen.moment += 1.0


listen.moment = 0.0


def test_a_lease_lasts_for_three_heartbeats():
    clock = AttentiveClock(longest_step=1.0)
    listen(clock, 1)
    lease = Lease(clock, heartbeat=1.0)
    listen(clock, 3)
    assert not lease.is_lost
    lease.renew()
    listen(clock, 3)
    assert not lease.is_lost
    listen(clock, 1)
    assert lease.is_lost
    assert lease.silence == pytest.approx(4.0)


def test_a_lease_that_is_suspended_is_not_lost_and_begins_anew():
    clock = AttentiveClock(longest_step=1.0)
    lease = Lease(clock, heartbeat=1.0)
    with lease.suspended(), lease.suspended():
        listen(clock, 100)
        assert not lease.is_lost
    assert lease.silence == 0.0
    listen(clock, 4)
    assert lease.is_lost


class Starved(StarvationWatch):
    """A process that gets a core, or not, as a test says."""

    def __init__(self) -> None:
        super().__init__(1)
        self.is_starved = True

    def was_starved(self, seconds: float) -> bool:
        assert seconds == pytest.approx(1.0)
        return self.is_starved


def test_the_time_in_which_it_has_no_core_does_not_count():
    clock = AttentiveClock(longest_step=1.0)
    process = Starved()
    lease = Lease(clock, heartbeat=1.0, starvation=process)
    for _ in range(100):
        listen(clock, 1)
        lease.look()
        assert not lease.is_lost
    process.is_starved = False
    for _ in range(3):
        assert not lease.is_lost
        listen(clock, 1)
        lease.look()
    assert lease.is_lost


@dataclass
class Holder:
    lease: Lease | None
    beat: float = 0.0


def test_the_watch_tells_of_the_silent_ones_only():
    async def story() -> list[Holder]:
        watch = LeaseWatch(heartbeat=0.02)
        silent, lively, without = Holder(watch.grant()), Holder(watch.grant()), Holder(None)
        lost: list[Holder] = []
        heard: list[Holder] = []
        found = asyncio.Event()

        def holders() -> list[Holder]:
            assert lively.lease is not None
            lively.lease.renew()
            return [silent, lively, without]

        def on_lost(holder: Holder, silence: float) -> None:
            assert silence > 0.06
            lost.append(holder)
            found.set()

        task = asyncio.create_task(watch.run(holders, on_lost, heard.append))
        await asyncio.wait_for(found.wait(), LONGEST_WAIT)
        task.cancel()
        assert all(holder is silent for holder in lost)
        assert lively in heard
        return lost

    assert asyncio.run(story())


def test_a_lease_is_renewed_for_the_moment_of_a_heartbeat_not_for_the_look():
    clock = AttentiveClock(longest_step=1.0)
    clock.advance(100.0)
    lease = Lease(clock, heartbeat=1.0)
    clock.advance(101.0)
    lease.renew(100.25)
    assert lease.silence == pytest.approx(0.75)
    lease.renew(100.0)  # an older one
    assert lease.silence == pytest.approx(0.75)
    lease.renew(101.5)
    assert lease.silence == 0.0
    assert lease.silence_at(101.75) == pytest.approx(0.25)


def test_leases_are_looked_at_once_a_heartbeat_unless_one_is_late(monkeypatch: pytest.MonkeyPatch):
    async def story() -> list[float]:
        watch = LeaseWatch(heartbeat=1.0)
        beating, hanging = Holder(watch.grant()), Holder(watch.grant())
        pauses: list[float] = []

        async def sleep(pause: float) -> None:
            nonlocal moment
            pauses.append(pause)
            moment += pause
            beating.beat = moment - 0.5  # recorded, and not sent
            if moment < hangs_from:
                hanging.beat = moment - 0.5
            if len(pauses) == 30:
                raise asyncio.CancelledError

        moment = time.monotonic()
        hangs_from = moment + 4.2
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: moment)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        lost: list[tuple[Holder, float]] = []
        with pytest.raises(asyncio.CancelledError):
            await watch.run(
                lambda: [beating, hanging],
                lambda holder, silence: lost.append((holder, silence)),
                lambda holder: None,
            )
        assert all(holder is hanging for holder, _ in lost)
        assert lost[0][1] == pytest.approx(3.1, abs=0.11)
        return pauses

    pauses = asyncio.run(story())
    assert pauses[:5] == [1.0] * 5
    assert pauses[-20:] == [0.2] * 20
