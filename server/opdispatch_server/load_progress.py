"""Work that tells its steps, as a stream of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

# A client that does not read loses lines, not the daemon its memory.
STEPS_QUEUED = 1000


async def in_steps(
    work: Callable[[Callable[[str], None]], Awaitable[T]],
) -> AsyncGenerator[str | T, None]:
    """What ``work`` reports, as it does so, and then what it returns; raises what it raises.

    Closing the generator cancels the work.
    """
    steps: asyncio.Queue[str] = asyncio.Queue()

    def report(line: str) -> None:
        if steps.qsize() < STEPS_QUEUED:
            steps.put_nowait(line)

    task = asyncio.ensure_future(work(report))
    try:
        while not task.done():
            step = asyncio.ensure_future(steps.get())
            await asyncio.wait({task, step}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                step.cancel()
                break
            yield step.result()
        while not steps.empty():
            yield steps.get_nowait()
        yield await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
