"""Work that goes on when it is not awaited any more."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from opdispatch_server.daemon.event_loop.shielded import shielded


async def test_shielded_future_returns_result_or_raises_error():
    results: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in "abc"]
    results[0].set_result(7)
    results[1].set_exception(KeyError("x"))
    results[2].cancel()
    assert await shielded(results[0]) == 7
    with pytest.raises(KeyError):
        await shielded(results[1])
    with pytest.raises(asyncio.CancelledError):
        await shielded(results[2])


@pytest.mark.parametrize("error", [None, KeyError("x")])
async def test_shielded_work_outlives_its_cancelled_waiter_and_its_error_is_not_reported(
    error: Exception | None,
):
    loop = asyncio.get_running_loop()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: told.append(context))
    may_end = asyncio.Event()

    async def work() -> str:
        await may_end.wait()
        if error is not None:
            raise error
        return "done"

    async def wait(work: asyncio.Future[str]) -> str:
        return await shielded(work)

    task = asyncio.create_task(work())
    waiting = asyncio.create_task(wait(task))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not task.cancelling()
    may_end.set()
    await asyncio.wait({task})
    if error is None:
        assert task.result() == "done"
    del task
    gc.collect()
    assert told == []
