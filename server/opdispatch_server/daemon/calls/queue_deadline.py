"""Deadlines that pass while a call is queued for an interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opdispatch_server.call_context import CallContext, with_last_words
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_wire.errors import DeadlineExceededError


@asynccontextmanager
async def queue_deadline(
    what: str, context: CallContext, session: InterpreterSession, **facts: str
) -> AsyncIterator[None]:
    """End the wait for a slot early enough to report that to the caller.

    Raises DeadlineExceededError with the ``facts``: the call has not started.
    """
    timeout = None if context.timeout is None else with_last_words(context.timeout)
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"the deadline passed while {what} was queued for interpreter "
            f"{session.name}; it never started",
            **facts,
            interpreter=session.name,
            started="no",
        ) from error
