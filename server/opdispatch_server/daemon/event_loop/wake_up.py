"""Waking all that wait for something to change, each time that it may have."""

from __future__ import annotations

import asyncio


class WakeUp:
    """Wakes all that wait, each time that something may be what they wait for.

    A waiter looks first, and again after each change: nothing is handed over. Belongs to the
    event loop.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def note(self) -> None:
        """Wake everything that waits for a change."""
        changed, self._next = self._next, asyncio.Event()
        changed.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._next.wait()
