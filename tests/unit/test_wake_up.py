"""Waiting for changes, in one event loop."""

import asyncio

import pytest

from opdispatch_server.daemon.event_loop.wake_up import WakeUp


async def test_a_change_wakes_all_that_wait_in_their_order():
    changes, woken = WakeUp(), []

    async def wait(name):
        await changes.wait()
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(wait(name))
        await asyncio.sleep(0)
        changes.note()
    assert woken == ["a", "b", "c"]


async def test_change_does_not_wake_later_waiters():
    changes = WakeUp()
    changes.note()
    waiting = asyncio.ensure_future(changes.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    changes.note()
    await waiting


async def test_cancelled_waiter_leaves_the_others_waiting():
    changes = WakeUp()
    first, second = (asyncio.ensure_future(changes.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    changes.note()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
