"""Calls that wait for libraries, and a daemon that stops meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.calls.recovery import CallRecovery
from opdispatch_wire.errors import QueueFullError, RefusedError

AWAY = RefusedError("its library is away", operator="a::b")


class NeverSettles:
    """Libraries that do not come back; ``waits`` says that a call waits for them."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def wait(self, affects: object) -> None:
        self.waits.set()
        await asyncio.Event().wait()


def recovery(settling: Any, calls: int = 2) -> CallRecovery:
    return CallRecovery(settling, QueueLimits(calls, 100))


async def waits(recovery: CallRecovery, seconds: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    await recovery.wait(lambda version: True, AWAY, 10, deadline)


async def test_who_waits_is_sent_away_when_the_daemon_stops():
    settling = NeverSettles()
    waiting = recovery(settling)
    call = asyncio.create_task(waits(waiting))
    await settling.waits.wait()
    waiting.close()
    with pytest.raises(RefusedError, match="its library is away"):
        await call
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(waiting)


async def test_the_daemon_stops_in_the_moment_in_which_a_wait_is_over():
    settling = NeverSettles()
    waiting = recovery(settling)
    call = asyncio.create_task(waits(waiting, seconds=0))
    await settling.waits.wait()
    waiting.close()  # its time is up, and it has not run since
    with pytest.raises(RefusedError, match="its library is away"):
        await call
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(waiting)


async def test_time_ends_also_where_there_is_nothing_to_wait_for():
    class IsSettled:
        async def wait(self, affects: object) -> None:
            return

    await waits(recovery(IsSettled()))
    with pytest.raises(RefusedError, match="its library is away"):
        await waits(recovery(IsSettled()), seconds=-1)


async def test_no_more_wait_than_may():
    settling = NeverSettles()
    waiting = recovery(settling, calls=1)
    call = asyncio.create_task(waits(waiting))
    await settling.waits.wait()
    with pytest.raises(QueueFullError, match="1 calls with 10 bytes wait"):
        await waits(waiting)
    waiting.close()
    with pytest.raises(RefusedError):
        await call
