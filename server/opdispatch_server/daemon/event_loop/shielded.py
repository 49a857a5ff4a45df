"""Work that continues when its waiters give up."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def shielded(work: asyncio.Future[T]) -> asyncio.Future[T]:
    """Shield as ``asyncio.shield`` does, but do not report an error that is not awaited.

    Since Python 3.14 ``asyncio.shield`` logs such an error as a mistake; here it is none, since
    waiters leave at their deadlines.
    """
    awaited: asyncio.Future[T] = work.get_loop().create_future()

    def settle(work: asyncio.Future[T]) -> None:
        error = None if work.cancelled() else work.exception()
        if awaited.done():
            return
        if work.cancelled():
            awaited.cancel()
        elif error is not None:
            awaited.set_exception(error)
        else:
            awaited.set_result(work.result())

    work.add_done_callback(settle)
    return awaited
