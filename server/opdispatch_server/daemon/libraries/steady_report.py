"""Progress reports during a long step, so that the caller knows it continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opdispatch_server.daemon.environments.build import Report

SAID_EVERY = 5.0
"""Seconds between two reports; clients wait longer than that for one."""


@asynccontextmanager
async def saying(report: Report, what: str) -> AsyncIterator[None]:
    """Report, should the block take long, that ``what`` is being done, and that it continues."""

    async def say() -> None:
        line = what
        while True:
            await asyncio.sleep(SAID_EVERY)
            report(line)
            line = ""  # an empty line says only that work continues

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()
