"""An event that wakes all waiters at each change."""

from __future__ import annotations

import asyncio


class WakeUp:
    """Wakes all waiters each time that what they wait for may have become true.

    A waiter checks first, and again after each change: nothing is handed over. For use in the event
    loop only.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def note(self) -> None:
        """Wake all waiters."""
        changed, self._next = self._next, asyncio.Event()
        changed.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._next.wait()
