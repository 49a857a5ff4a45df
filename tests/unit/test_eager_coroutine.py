"""Coroutines that continue inside the function that resumes them."""

from __future__ import annotations

import asyncio

from opdispatch_server.serving.eager_coroutine import EagerCoroutine, pause
from tests.waits import LONGEST_WAIT


async def test_coroutine_continues_inside_resume():
    steps = []

    async def work() -> None:
        for number in range(3):
            steps.append(number)
            await pause()

    eager = EagerCoroutine(work())
    assert steps == [0]
    eager.resume()
    assert steps == [0, 1]
    for _ in range(3):  # also after the end
        eager.resume()
    assert steps == [0, 1, 2]


async def test_resume_does_nothing_while_the_coroutine_awaits_a_future():
    future: asyncio.Future[int] = asyncio.Future()
    found = []

    async def work() -> None:
        found.append(await future)
        await pause()
        found.append(2)

    eager = EagerCoroutine(work())
    eager.resume()
    future.set_result(1)
    await eager.wait_until_idle(LONGEST_WAIT)
    assert found == [1]
    eager.resume()
    assert found == [1, 2]


async def test_coroutine_that_yields_to_the_loop_continues_in_its_next_step():
    steps = []

    async def work() -> None:
        for number in range(3):
            steps.append(number)
            await asyncio.sleep(0)

    eager = EagerCoroutine(work())
    eager.resume()
    assert steps == [0]
    await eager.wait_until_idle(LONGEST_WAIT)
    assert steps == [0, 1, 2]


async def test_wait_until_idle_outlasts_several_futures_and_ends_at_its_timeout():
    futures: list[asyncio.Future[None]] = [asyncio.Future() for _ in range(3)]

    async def work() -> None:
        for future in futures:
            await future

    eager = EagerCoroutine(work())
    await eager.wait_until_idle(0.0)
    waiting = asyncio.create_task(eager.wait_until_idle(None))
    for future in futures:
        await asyncio.sleep(0)
        assert not waiting.done()
        future.set_result(None)
    await asyncio.wait_for(waiting, LONGEST_WAIT)


async def test_error_ends_the_coroutine_alone():
    future: asyncio.Future[None] = asyncio.Future()

    async def work() -> None:
        await future

    eager = EagerCoroutine(work())
    future.set_exception(OSError("gone"))
    await eager.wait_until_idle(LONGEST_WAIT)
    eager.resume()


async def test_close_cancels_the_future_and_runs_the_cleanup():
    future: asyncio.Future[None] = asyncio.Future()
    ended = []

    async def work() -> None:
        try:
            await future
        finally:
            ended.append("awaiting")

    async def idle() -> None:
        try:
            await pause()
        finally:
            ended.append("paused")

    for coroutine in (work(), idle()):
        eager = EagerCoroutine(coroutine)
        eager.close()
        eager.close()
        eager.resume()
    assert ended == ["awaiting", "paused"]
    assert future.cancelled()
