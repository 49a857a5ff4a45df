"""Runs of suspected operators, each alone in its interpreter, which it may bring down.

During such a run no other client call runs there: the queue is held, direct calls are refused, so
that they come through the daemon, and calls that were running have ended. Each of these waits lasts
at most ``PATIENCE``, as does the wait of other calls: a kernel that runs longer than that is no
longer alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes

PATIENCE = 2.0


class AloneRuns:
    """Runs suspected calls alone in their interpreters. For use in the event loop only.

    ``is_cell`` returns whether an interpreter takes no direct calls: it is reserved for suspects.
    """

    def __init__(
        self,
        queues: InterpreterQueues,
        routes: DirectRoutes,
        is_cell: Callable[[InterpreterSession], bool],
    ) -> None:
        self._queues = queues
        self._routes = routes
        self._is_cell = is_cell
        # A lock for each interpreter, held by the call that runs alone there.
        self._turns: WeakKeyDictionary[InterpreterSession, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def at(self, session: InterpreterSession) -> AsyncIterator[None]:
        """Keep everything else out of an interpreter during the block, for at most ``PATIENCE``."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(session, asyncio.Lock())
        has_turn = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                has_turn = await turn.acquire()
        if not has_turn:  # the previous one runs for longer than that
            yield
            return
        queue = self._queues.queue_of(session)
        queue.hold()
        ending = None

        def let_others_in() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                queue.let_go()
                turn.release()
                self._routes.resume(session)

        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    if not self._is_cell(session):
                        await self._routes.suspend(session)
                    await queue.wait_idle()
            ending = loop.call_later(PATIENCE, let_others_in)
            yield
        finally:
            if ending is not None:
                ending.cancel()
            let_others_in()
