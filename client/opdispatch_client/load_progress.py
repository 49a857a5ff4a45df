"""A load's steps as they come, and the clock of whoever waits for them.

Making an environment may take minutes, so the session's timeout is not for all of the load: it is
how long the daemon may go without a word. While it makes an environment it has one every few
seconds; while it imports the library it has none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client.rpcs import Rpc
from opdispatch_wire.errors import DeadlineExceededError, WireError

T = TypeVar("T")
OnProgress = Callable[[str], None]


def follow(
    call: Any, rpc: Rpc[str | T], on_progress: OnProgress | None, timeout: float | None
) -> T:
    """Reads a blocking stream to its end. Raises grpc.RpcError and DeadlineExceededError."""
    try:
        for message in read_within(call, rpc.what, timeout):
            value = rpc.read(message)
            if not isinstance(value, str):
                return value
            if value and on_progress:
                on_progress(value)
        raise _cut_short(rpc)
    finally:
        call.cancel()


def read_within(call: Any, what: str, timeout: float | None) -> Iterator[Any]:
    """Return the messages of a blocking stream, each of which may take `timeout` seconds.

    Raises grpc.RpcError, and DeadlineExceededError, which says `what` was being asked.
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


async def follow_async(
    call: Any, rpc: Rpc[str | T], on_progress: OnProgress | None, timeout: float | None
) -> T:
    """Reads an asyncio stream to its end; as ``follow`` does."""
    messages: AsyncIterator[Any] = aiter(call)
    try:
        while True:
            try:
                message = await asyncio.wait_for(anext(messages, None), timeout)
            except TimeoutError:
                raise _silence(rpc.what, timeout) from None
            if message is None:
                raise _cut_short(rpc)
            value = rpc.read(message)
            if not isinstance(value, str):
                return value
            if value and on_progress:
                on_progress(value)
    finally:
        call.cancel()


def is_unknown_method(error: OpdispatchError) -> bool:
    """Whether a daemon has said that it has no such method."""
    return type(error) is OpdispatchError and error.facts.get("status") == "UNIMPLEMENTED"


def _cut_short(rpc: Rpc[Any]) -> WireError:
    return WireError(f"$: the daemon has ended its answer to {rpc.what} before the reply")


def _silence(what: str, timeout: float | None) -> DeadlineExceededError:
    return DeadlineExceededError(f"the daemon said nothing about {what} for {timeout:g} s")
