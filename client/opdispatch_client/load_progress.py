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
    late = threading.Event()

    def give_up() -> None:
        late.set()
        call.cancel()

    messages: Iterator[Any] = iter(call)
    try:
        while True:
            timer = threading.Timer(timeout, give_up) if timeout else None
            if timer:
                timer.daemon = True
                timer.start()
            try:
                message = next(messages, None)
            finally:
                if timer:
                    timer.cancel()
            value = _read(rpc, message)
            if not isinstance(value, str):
                return value
            if value and on_progress:
                on_progress(value)
    except grpc.RpcError:
        if late.is_set():
            raise _silence(rpc, timeout) from None
        raise
    finally:
        call.cancel()


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
                raise _silence(rpc, timeout) from None
            value = _read(rpc, message)
            if not isinstance(value, str):
                return value
            if value and on_progress:
                on_progress(value)
    finally:
        call.cancel()


def is_unknown_method(error: OpdispatchError) -> bool:
    """Whether a daemon has said that it has no such method."""
    return type(error) is OpdispatchError and error.facts.get("status") == "UNIMPLEMENTED"


def _read(rpc: Rpc[str | T], message: Any) -> str | T:
    if message is None:
        raise WireError(f"$: the daemon has ended its answer to {rpc.what} before the reply")
    return rpc.read(message)


def _silence(rpc: Rpc[Any], timeout: float | None) -> DeadlineExceededError:
    return DeadlineExceededError(f"the daemon said nothing about {rpc.what} for {timeout:g} s")
