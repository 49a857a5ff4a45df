"""Calls that run alone in their interpreter: those of operators that may bring it down.

While one runs, no other call of a client does there: the queue is held, direct calls are refused
and so come through the daemon, and what was running has ended. None of that is waited for longer
than ``PATIENCE``, and the others wait no longer than that: a kernel that takes its time is not
alone any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_wire.v1 import interpreter_pb2

PATIENCE = 2.0


class AloneRuns:
    """Belongs to the event loop.

    ``announce_routes`` tells an interpreter which direct calls it may take again; ``is_cell`` says
    of which ones it need not be told, since no client calls them.
    """

    def __init__(
        self,
        queues: InterpreterQueues,
        announce_routes: Callable[[InterpreterSession], None],
        is_cell: Callable[[InterpreterSession], bool],
    ) -> None:
        self._queues = queues
        self._announce_routes = announce_routes
        self._is_cell = is_cell
        # Held by the call that is alone.
        self._turns: WeakKeyDictionary[InterpreterSession, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def at(self, session: InterpreterSession) -> AsyncIterator[None]:
        """Keep everything else from running in an interpreter in the block, for a while."""
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(session, asyncio.Lock())
        has_turn = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                has_turn = await turn.acquire()
        if not has_turn:  # the one before it takes its time
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
                if not self._is_cell(session) and session.alive:
                    self._announce_routes(session)

        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    if not self._is_cell(session):
                        await _refuse_direct_calls(session)
                    await queue.wait_idle()
            ending = loop.call_later(PATIENCE, let_others_in)
            yield
        finally:
            if ending is not None:
                ending.cancel()
            let_others_in()


async def _refuse_direct_calls(session: InterpreterSession) -> None:
    """Stop an interpreter's direct calls, and wait for those that it runs."""
    if session.direct_lane and session.alive:
        rules = interpreter_pb2.DirectCalls(epoch=0)
        session.tell(interpreter_pb2.DaemonMessage(direct_calls=rules))
        await session.wait_for_direct_calls(0)
