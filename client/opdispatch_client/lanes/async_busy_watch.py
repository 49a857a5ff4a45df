"""``BusyWatch`` for the calls of an asyncio session."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.waiting_calls import LOOK_SECONDS, WaitingCall, WaitingCalls
from opdispatch_client.listings import Interpreter


class AsyncBusyWatch:
    """A timer that runs while there are calls. For use in its event loop only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        list_interpreters: Callable[[], Awaitable[list[Interpreter]]],
    ) -> None:
        self._loop = loop
        self._list_interpreters = list_interpreters
        self._calls = WaitingCalls()
        self._timer: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._stopped = False

    def add(self, call: WaitingCall) -> None:
        """Watch a call. Its ``give_up`` is called at most once, and must not block."""
        self._calls.add(call)
        if self._timer is None:
            self._look_later()

    def remove(self, call: WaitingCall) -> None:
        """Stop watching a call. Idempotent."""
        self._calls.remove(call)

    def stop(self) -> None:
        """Stop for good. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = None
        if self._calls and not self._stopped:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._calls.is_look_due(time.monotonic()):
            self._timer = self._loop.create_task(self._ask())
        else:
            self._look_later()

    async def _ask(self) -> None:
        with contextlib.suppress(OpdispatchError):  # the calls keep waiting
            self._calls.give_up_where_busy(await self._list_interpreters())
        self._look_later()
