"""The timeout between two messages of a stream from the daemon.

Building an environment may take minutes, so the session's timeout limits the pause between two
messages, not the whole load. The daemon sends a message every few seconds while it builds an
environment, but none while it imports the library.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from opdispatch_wire.errors import DeadlineExceededError


def read_within(call: Any, what: str, timeout: float | None) -> Iterator[Any]:
    """Yield the messages of a blocking stream, each of which may take `timeout` seconds.

    Raises grpc.RpcError, and DeadlineExceededError, whose text contains `what`, the request in
    words.
    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        call.cancel()

    messages: Iterator[Any] = iter(call)
    while True:
        timer = threading.Timer(timeout, give_up) if timeout else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            message = next(messages, None)
        except grpc.RpcError:
            if late.is_set():
                raise _silence(what, timeout) from None
            raise
        finally:
            if timer:
                timer.cancel()
        if message is None:
            return
        yield message


async def read_within_async(call: Any, what: str, timeout: float | None) -> AsyncIterator[Any]:
    """Like ``read_within``, for an asyncio stream."""
    messages: AsyncIterator[Any] = aiter(call)
    while True:
        try:
            message = await asyncio.wait_for(anext(messages, None), timeout)
        except TimeoutError:
            raise _silence(what, timeout) from None
        if message is None:
            return
        yield message


def _silence(what: str, timeout: float | None) -> DeadlineExceededError:
    return DeadlineExceededError(f"the daemon sent no message about {what} for {timeout:g} s")
