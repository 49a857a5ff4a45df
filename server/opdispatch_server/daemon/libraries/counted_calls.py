"""A count of calls, and a wait until there are none."""

from __future__ import annotations

import asyncio


class CountedCalls:
    """The calls in flight of a version or a replica. For use in the event loop only."""

    def __init__(self) -> None:
        self.calls_in_flight = 0
        # Set to an event only while a task waits for it.
        self._idle: asyncio.Event | None = None

    def begin_call(self) -> None:
        """Count a call. Called in the same step of the event loop that chooses its kernel."""
        self.calls_in_flight += 1

    def end_call(self) -> None:
        """Stop counting a call."""
        self.calls_in_flight -= 1
        if self._idle is not None and not self.calls_in_flight:
            self._idle.set()
            self._idle = None

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        if self.calls_in_flight:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()
