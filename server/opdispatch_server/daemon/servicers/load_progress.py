"""Convert work that reports its steps to an asynchronous generator of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# For a client that does not read, lines are dropped, so that memory stays bounded.
STEPS_QUEUED = 1000


async def in_steps(
    work: Callable[[Callable[[str], None]], Awaitable[T]],
) -> AsyncGenerator[str | T, None]:
    """Yield the reports of ``work`` as they come, then its result; raise its error.

    Closing the generator cancels the work.
    """
    steps: asyncio.Queue[str | None] = asyncio.Queue()

    def report(line: str) -> None:
        if steps.qsize() < STEPS_QUEUED:
            steps.put_nowait(line)

    task = asyncio.ensure_future(work(report))
    task.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (step := await steps.get()) is not None:
            yield step
        yield await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
