"""Telling a caller again and again that something long goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opdispatch_server.daemon.environments.build import Report

SAID_EVERY = 5.0
"""Seconds; clients wait longer than that for a word."""


@asynccontextmanager
async def saying(report: Report, what: str) -> AsyncIterator[None]:
    """Report, should the block take long, ``what`` is being done, and that it goes on."""

    async def say() -> None:
        line = what
        while True:
            await asyncio.sleep(SAID_EVERY)
            report(line)
            line = ""  # only that work goes on

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()
