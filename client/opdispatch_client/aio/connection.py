"""The connection of an asyncio session; written by hand, like ``blocking.connection``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import grpc

from opdispatch_client.aio.calls import AsyncCalls
from opdispatch_client.aio.one_loop import OneLoop
from opdispatch_client.aio.operator_catalog import AsyncOperatorCatalog
from opdispatch_client.aio.value_lease import AsyncValueLease
from opdispatch_client.blocking.connection import Connection
from opdispatch_client.connection_base import ConnectionBase
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.grpc_forks import GRPC_FORKS
from opdispatch_client.library_upload import OnUpload
from opdispatch_client.listings import Interpreter, ServerInfo
from opdispatch_client.read_timeout import read_within_async
from opdispatch_client.rpcs import Load, Rpc
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError
from opdispatch_wire.status import error_from_rpc

T = TypeVar("T")


class AsyncConnection(ConnectionBase):
    """A channel for the tasks of one event loop, and the parts of a session that use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        GRPC_FORKS.note_use(endpoint.address, asyncio=True)
        self._channel = endpoint.asyncio_channel()
        GRPC_FORKS.note_channel(self._channel)
        self._loop = OneLoop(endpoint)

    def make_calls(
        self,
        introduce: Callable[[], Awaitable[tuple[ServerInfo, int]]],
        list_interpreters: Callable[[], Awaitable[list[Interpreter]]],
    ) -> AsyncCalls:
        """Return the object that sends a session's calls over this connection."""
        return AsyncCalls(
            self.endpoint,
            self._channel,
            self._send_within,
            introduce,
            list_interpreters,
            self._loop,
        )

    def make_lease(self) -> AsyncValueLease:
        """Return the lease of a session's remote tensors, which is opened on first use."""
        return AsyncValueLease(self._channel, self.endpoint, self._loop)

    def make_catalog(self) -> AsyncOperatorCatalog:
        """Return the catalog in which ``session.ops`` looks up names."""
        return AsyncOperatorCatalog(self._ask, self.send)

    async def send(
        self, rpc: Rpc[T], *, timeout: float | None = None, wait: float | None = None
    ) -> T:
        """Send a request; return the content of its reply. Raises an OpdispatchError.

        ``wait`` is how many seconds to wait for a daemon that restarts; None: the session's limit.
        """
        seconds = rpc.deadline(timeout or self.endpoint.timeout)
        waiting = self._wait_for_daemon(seconds, wait)
        while True:
            try:
                return await self._send_within(rpc, seconds)
            except (DaemonUnavailableError, RefusedError) as error:
                pause = waiting.pause_after(error, is_repeatable=rpc.is_repeatable)
            await asyncio.sleep(pause)

    async def stream(self, rpc: Rpc[T]) -> AsyncGenerator[T, None]:
        """Send a request; yield each reply, for which the session's timeout applies anew."""
        seconds = rpc.deadline(self.endpoint.timeout)
        self._loop.check()
        method = self._method(rpc, self._channel.unary_stream)
        with self._own_errors():
            call = method(rpc.request, metadata=rpc.metadata)
            try:
                async for message in read_within_async(call, rpc.what, seconds):
                    yield rpc.read(message)
            finally:
                call.cancel()

    async def upload(self, load: Load, on_upload: OnUpload | None) -> None:
        """Upload over a separate blocking channel in a thread, since reading the files blocks."""
        loop = asyncio.get_running_loop()

        def tell(received: int, total: int) -> None:
            if on_upload is not None:
                loop.call_soon_threadsafe(on_upload, received, total)

        with self.endpoint.channel() as channel:
            upload = self._upload_over(channel, load, tell)
            running = asyncio.ensure_future(asyncio.to_thread(upload.run))
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                upload.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise

    def begin_close(self) -> bool:
        """Begin closing like ``ConnectionBase.begin_close``.

        Raises EventLoopError in another event loop.
        """
        if not super().begin_close():
            return False
        self._loop.check()
        return True

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        await self._channel.close()

    async def _send_within(self, rpc: Rpc[T], seconds: float | None) -> T:
        self._loop.check()
        method = self._method(rpc, self._channel.unary_unary)
        with self._own_errors():
            reply = await method(rpc.request, timeout=seconds, metadata=rpc.metadata)
        return rpc.read(reply)

    def _ask(self, rpc: Rpc[T], *, timeout: float) -> T:
        """Send a request and wait, in a thread without an event loop, over a new connection."""
        self._check_open()
        with closing(Connection(self.endpoint)) as connection:
            return connection.send(rpc, timeout=timeout)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            if self.is_closed:
                raise self.endpoint.closed_error() from None
            raise error_from_rpc(error, address=self.endpoint.address) from None
        except asyncio.CancelledError:
            # Closing the channel raises the same error; then this task was not cancelled.
            task = asyncio.current_task()
            if self.is_closed and not (task and task.cancelling()):
                raise self.endpoint.closed_error() from None
            raise
