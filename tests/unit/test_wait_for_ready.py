"""Calls that wait for libraries, and a daemon that stops meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.calls.wait_for_ready import WaitForReady
from opdispatch_wire.errors import QueueFullError, RefusedError

AWAY = RefusedError("its library is away", operator="a::b")


class NeverAvailable:
    """Libraries that do not come back; ``waits`` says that a call waits for them."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def wait(self, affects: object) -> None:
        self.waits.set()
        await asyncio.Event().wait()


def waiting_calls(availability: Any, calls: int = 2) -> WaitForReady:
    return WaitForReady(availability, QueueLimits(calls, 100))


async def waits(calls: WaitForReady, seconds: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    await calls.wait(lambda version: True, AWAY, 10, deadline)


async def test_waiting_call_is_refused_when_the_daemon_stops():
    availability = NeverAvailable()
    waiting = waiting_calls(availability)
    call = asyncio.create_task(waits(waiting))
    await availability.waits.wait()
    waiting.close()
    with pytest.raises(RefusedError, match="its library is away"):
        await call
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(waiting)


async def test_the_daemon_stops_in_the_moment_in_which_a_wait_is_over():
    availability = NeverAvailable()
    waiting = waiting_calls(availability)
    call = asyncio.create_task(waits(waiting, seconds=0))
    await availability.waits.wait()
    waiting.close()  # its time is up, and it has not run since
    with pytest.raises(RefusedError, match="its library is away"):
        await call
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(waiting)


async def test_time_ends_also_where_there_is_nothing_to_wait_for():
    class IsAvailable:
        async def wait(self, affects: object) -> None:
            return

    await waits(waiting_calls(IsAvailable()))
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(waiting_calls(IsAvailable()), seconds=-1)


async def test_no_more_wait_than_may():
    availability = NeverAvailable()
    waiting = waiting_calls(availability, calls=1)
    call = asyncio.create_task(waits(waiting))
    await availability.waits.wait()
    with pytest.raises(QueueFullError, match="1 calls with 10 bytes wait"):
        await waits(waiting)
    waiting.close()
    with pytest.raises(RefusedError):
        await call
