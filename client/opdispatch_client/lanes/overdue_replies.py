"""Time out the replies of planned calls in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


class OverdueReplies:
    """Pending replies with the same timeout, which therefore expire in the order of their calls.

    One timer serves all of them; a timer for each would make a call take half as long again. For
    use in its event loop only.
    """

    __slots__ = ("_loop", "_timer", "_waiting", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        self._loop = loop
        self.seconds = seconds
        """Timeout in seconds of each reply; None for no limit."""
        self._waiting: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: asyncio.Future[Any]) -> None:
        """Fail ``reply`` with TimeoutError after ``seconds``, unless it is removed before."""
        if self.seconds is None:
            return
        deadline = self._waiting[reply] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)

    def remove(self, reply: asyncio.Future[Any]) -> None:
        """Remove a reply that is no longer awaited. Idempotent."""
        self._waiting.pop(reply, None)

    def stop(self) -> None:
        """Stop for good. Idempotent."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for reply, deadline in [*self._waiting.items()]:
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._look)
                return
            del self._waiting[reply]
            if not reply.done():
                reply.set_exception(TimeoutError())
