"""The number of calls that something has, and the moment when it has none."""

from __future__ import annotations

import asyncio


class CountedCalls:
    """Counts the calls of a version or of a replica. Belongs to the event loop."""

    def __init__(self) -> None:
        self.calls_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin_call(self) -> None:
        """Count a call; from the moment its kernel is chosen, in the same step of the loop."""
        self.calls_in_flight += 1
        self._idle.clear()

    def end_call(self) -> None:
        """Take a call off the count."""
        self.calls_in_flight -= 1
        if not self.calls_in_flight:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until none of its calls is running."""
        await self._idle.wait()
