"""When the replies of planned calls are too late, in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


class OverdueReplies:
    """Replies that are awaited for as long as all others, and time out in their order.

    One timer for all of them: with one for each, a call would take half as long again. Belongs
    to the event loop.
    """

    __slots__ = ("_loop", "_timer", "_waiting", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        self._loop = loop
        self.seconds = seconds
        """How long each is awaited; None: for ever."""
        self._waiting: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: asyncio.Future[Any]) -> None:
        """Fail ``reply`` with TimeoutError after that time, unless it is removed."""
        if self.seconds is None:
            return
        deadline = self._waiting[reply] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)

    def remove(self, reply: asyncio.Future[Any]) -> None:
        """Let a reply be: it is awaited no more. Idempotent."""
        self._waiting.pop(reply, None)

    def stop(self) -> None:
        """Do nothing more. Idempotent."""
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
