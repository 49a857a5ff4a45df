"""The steps of a load, as its client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from opdispatch_server.daemon.servicers.load_progress import STEPS_QUEUED, in_steps

Report = Callable[[str], None]


async def test_steps_come_in_order_before_the_result():
    told, go_on = asyncio.Event(), asyncio.Event()

    async def work(report: Report) -> int:
        report("one")
        told.set()
        await go_on.wait()
        report("two")
        return 3

    steps = in_steps(work)
    assert await anext(steps) == "one"
    assert told.is_set()
    go_on.set()
    assert [step async for step in steps] == ["two", 3]


async def test_error_of_a_load_follows_its_steps():
    async def work(report: Report) -> None:
        report("one")
        raise ValueError("no more")

    steps = in_steps(work)
    assert await anext(steps) == "one"
    with pytest.raises(ValueError, match="no more"):
        await anext(steps)


async def test_slow_reader_loses_steps_but_not_the_result():
    async def work(report: Report) -> str:
        for number in range(STEPS_QUEUED + 10):
            report(f"step {number}")
        return "result"

    steps = [step async for step in in_steps(work)]
    assert steps == [*(f"step {number}" for number in range(STEPS_QUEUED)), "result"]


async def test_cancelled_reader_cancels_the_load():
    begun = asyncio.Event()

    async def work(report: Report) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def read() -> None:
        async for _ in in_steps(work):
            pass

    before = asyncio.all_tasks()
    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    await asyncio.wait({reader})
    assert asyncio.all_tasks() == before
