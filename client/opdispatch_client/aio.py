"""The asyncio session with a daemon.

async with opdispatch_client.aio.connect() as session:
    edges = await session.ops.image.sobel(picture)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client import rpcs
from opdispatch_client.async_calling_session import AsyncCallingSession
from opdispatch_client.async_calls import AsyncCalls
from opdispatch_client.async_operator_catalog import AsyncOperatorCatalog
from opdispatch_client.endpoint import TIMEOUT_DEFAULT, Endpoint, LaneChoice, resolve_endpoint
from opdispatch_client.grpc_forks import GRPC_FORKS
from opdispatch_client.library_upload import OnUpload
from opdispatch_client.listings import (
    Interpreter,
    KernelSummary,
    Library,
    LoadedLibrary,
    OperatorDescription,
    OperatorSummary,
    RolledBack,
    ServerInfo,
    TableRow,
    UnloadedLibrary,
)
from opdispatch_client.load_progress import OnProgress, follow_async, is_unknown_method
from opdispatch_client.one_loop import OneLoop
from opdispatch_client.operator_call import Call
from opdispatch_client.remote_calls import AsyncRemoteCalls
from opdispatch_client.request_arguments import check_callable, check_seconds
from opdispatch_client.rpcs import Rpc
from opdispatch_client.session import Session
from opdispatch_client.session_base import SessionBase
from opdispatch_wire.addresses import check_socket_owner
from opdispatch_wire.asyncio_grpc import asyncio_channel
from opdispatch_wire.errors import DeadlineExceededError
from opdispatch_wire.requirements_file import Requirements
from opdispatch_wire.status import error_from_rpc

__all__ = ["AsyncSession", "Connecting", "connect"]

T = TypeVar("T")


def connect(
    address: str | None = None,
    *,
    timeout: float | None = TIMEOUT_DEFAULT,
    max_message_bytes: int | None = None,
    lane: LaneChoice = "auto",
    retry: bool = True,
    direct: bool = True,
) -> Connecting:
    """Opens a session: ``async with connect() as session`` or ``session = await connect()``.

    The parameters are those of ``opdispatch_client.connect``, and so are the errors; those of
    the daemon come when the result is entered or awaited.
    """
    endpoint = resolve_endpoint(
        address,
        timeout=timeout,
        max_message_bytes=max_message_bytes,
        lane=lane,
        retry=retry,
        direct=direct,
    )
    return Connecting(endpoint)


class Connecting:
    """A session that is not open yet."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._open().__await__()

    def __getattr__(self, name: str) -> NoReturn:
        how = "say `async with connect() as session`, or `session = await connect()`"
        raise AttributeError(f"a session that is not open yet has no {name!r}: {how}")

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._open()
        return self._session

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> AsyncSession:
        session = AsyncSession(self._endpoint)
        try:
            await session._calls.open(*await session._introduce())
        except DeadlineExceededError:
            await session.close()
            raise self._endpoint.unanswered_error() from None
        except BaseException:
            await session.close()
            raise
        return session


class AsyncSession(SessionBase, AsyncCallingSession):
    """A session with one daemon, for the tasks of one event loop; ``connect`` makes one.

    The methods are those of ``opdispatch_client.Session``, as coroutines, with the same
    results and errors; in another event loop, they raise EventLoopError. Cancelling a task cancels
    the request that it waits for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        check_socket_owner(endpoint.address)
        GRPC_FORKS.note_use(endpoint.address, asyncio=True)
        self._channel = asyncio_channel(endpoint.target, endpoint.options)
        GRPC_FORKS.note_channel(self._channel)
        self._loop = OneLoop(endpoint)
        self._calls = AsyncCalls(
            endpoint, self._channel, self._introduce, self._look_at_interpreters, self._loop
        )
        self._memory = self._calls.memory
        self._remote = AsyncRemoteCalls(endpoint, self._channel, self._call, self._loop)
        self._catalog = AsyncOperatorCatalog(self._ask, self._send)

    @property
    def lane(self) -> str:
        """How calls travel: "local", "stream" or "grpc"."""
        return self._calls.lane

    async def refresh_server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Asks the daemon again who it is, and takes over its message limit."""
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        return self._introduced(await self._send(rpcs.get_server_info(), timeout=timeout))

    async def load(
        self,
        path_or_module: str | os.PathLike[str],
        *,
        name: str | None = None,
        interpreter: str | None = None,
        interpreters: int | None = None,
        min_ready: int | None = None,
        on: str | None = None,
        requirements: Requirements | None = None,
        python: str | os.PathLike[str] | None = None,
        isolated: bool = False,
        on_progress: OnProgress | None = None,
        on_upload: OnUpload | None = None,
    ) -> LoadedLibrary:
        """Loads a library; see ``Session.load``."""
        check_callable(on_progress, "on_progress")
        check_callable(on_upload, "on_upload")
        read = functools.partial(
            rpcs.load,
            path_or_module,
            name=name,
            interpreter=interpreter,
            interpreters=interpreters,
            min_ready=min_ready,
            on=on,
            requirements=requirements,
            python=python,
            isolated=isolated,
            max_message_bytes=self._limit,
        )
        load = await asyncio.to_thread(read)
        rpc = load.rpc
        if load.content is not None:
            await self._upload_in_thread(load, on_upload)
        progress = rpcs.with_progress(rpc)
        if progress is None:
            return await self._send(rpc)
        return await self._load_in_steps(rpc, progress, on_progress)

    async def unload(self, name: str, *, version: int | None = None) -> Library | None:
        """Unloads every version of a library, or one; see ``Session.unload``."""
        return await self._send(rpcs.unload(name, version=version))

    async def unload_and_measure(self, name: str, *, version: int | None = None) -> UnloadedLibrary:
        """Unloads a library; see ``Session.unload_and_measure``."""
        return await self._send(rpcs.unload_and_measure(name, version=version))

    async def scale(self, name: str, interpreters: int) -> Library:
        """Has that many interpreters hold a library; see ``Session.scale``."""
        return await self._send(rpcs.scale(name, interpreters))

    async def rollback(self, name: str) -> RolledBack:
        """Makes the version before active again; see ``Session.rollback``."""
        return await self._send(rpcs.rollback(name))

    async def drain(self, interpreter: str, *, undo: bool = False) -> Interpreter:
        """Empties an interpreter, or ends that; see ``Session.drain``."""
        return await self._send(rpcs.drain(interpreter, undo=undo))

    async def libraries(self, *, all_versions: bool = False) -> list[Library]:
        """The loaded libraries; see ``Session.libraries``."""
        return await self._send(rpcs.list_libraries(all_versions=all_versions))

    async def interpreters(self) -> list[Interpreter]:
        """The worker interpreters that are connected to the daemon, and quarantined ones."""
        return await self._send(rpcs.list_interpreters())

    async def revive(self, interpreter: str) -> bool:
        """Has the daemon start a quarantined interpreter again; see ``Session.revive``."""
        return await self._send(rpcs.revive(interpreter))

    async def operators(self, pattern: str = "") -> list[OperatorSummary]:
        """The operators whose name matches a shell pattern, or contains a plain text."""
        found = await self._send(rpcs.list_operators(pattern))
        if not pattern:
            self._catalog.note(found)
        return found

    async def describe(self, operator: str) -> OperatorDescription:
        """Schema, documentation and kernels of an operator; see ``Session.describe``."""
        described = await self._send(rpcs.describe(operator))
        self._catalog.note_description(described)
        return described

    async def table(self, operator: str) -> list[TableRow]:
        """An operator's computed dispatch table; see ``Session.table``."""
        return await self._send(rpcs.get_table(operator))

    async def wait_for_def(self, operator: str, timeout: float | None = 2.0) -> OperatorSummary:
        """Waits until an operator is defined, for at most `timeout` seconds."""
        return await self._send(rpcs.wait_for_def(operator, timeout))

    async def wait_for_impl(
        self, operator: str, key: str | None = None, timeout: float | None = 2.0
    ) -> KernelSummary:
        """Waits until an operator has a kernel for a key; see ``Session``."""
        return await self._send(rpcs.wait_for_impl(operator, key, timeout))

    async def check_invariants(self) -> list[str]:
        """Has the daemon check its registry, and that interpreters agree; what does not hold."""
        return await self._send(rpcs.check_invariants())

    async def close(self) -> None:
        """Closes the connection; may be called again. Calls of other tasks fail."""
        self._closed = True
        if not self._endpoint.is_of_this_process:
            return
        self._loop.check()
        self._catalog.close()
        await self._remote.close()
        self._calls.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _introduce(self) -> tuple[ServerInfo, int]:
        info = await self.refresh_server_info(timeout=self._endpoint.handshake_timeout)
        return info, self._limit

    async def _look_at_interpreters(self) -> list[Interpreter]:
        return await self._send(rpcs.list_interpreters(), timeout=self._endpoint.handshake_timeout)

    async def _call(self, call: Call) -> Any:
        return await self._calls.call(call, self._send_within)

    async def _send(self, rpc: Rpc[T], *, timeout: float | None = None) -> T:
        return await self._send_within(rpc, rpc.deadline(timeout or self._endpoint.timeout))

    async def _send_within(self, rpc: Rpc[T], seconds: float | None) -> T:
        self._loop.check()
        method = self._method(rpc, self._channel.unary_unary)
        with self._errors_of_ours():
            reply = await method(rpc.request, timeout=seconds, metadata=rpc.metadata)
        return rpc.read(reply)

    def _ask(self, rpc: Rpc[T], *, timeout: float) -> T:
        """Send a request and wait, in a thread without a loop: with a connection for that."""
        if self._closed:
            raise self._endpoint.closed_error()
        with Session(self._endpoint) as session:
            return session._send(rpc, timeout=timeout)

    async def _upload_in_thread(self, load: rpcs.Load, on_upload: OnUpload | None) -> None:
        """Upload over a blocking channel of its own: reading the files blocks anyway."""
        loop = asyncio.get_running_loop()

        def tell(received: int, total: int) -> None:
            if on_upload is not None:
                loop.call_soon_threadsafe(on_upload, received, total)

        endpoint = self._endpoint
        with grpc.insecure_channel(endpoint.target, options=endpoint.options) as channel:
            upload = self._upload(channel, load, tell)
            running = asyncio.ensure_future(asyncio.to_thread(upload.run))
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                upload.cancel()
                await asyncio.gather(running, return_exceptions=True)
                raise

    async def _load_in_steps(
        self,
        rpc: Rpc[LoadedLibrary],
        steps: Rpc[str | LoadedLibrary],
        on_progress: OnProgress | None,
    ) -> LoadedLibrary:
        self._loop.check()
        method = self._method(steps, self._channel.unary_stream)
        try:
            with self._errors_of_ours():
                call = method(steps.request, metadata=steps.metadata)
                return await follow_async(call, steps, on_progress, self._endpoint.timeout)
        except OpdispatchError as error:
            if not is_unknown_method(error):
                raise
        return await self._send(rpc)  # an older daemon

    @contextmanager
    def _errors_of_ours(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            if self._closed:
                raise self._endpoint.closed_error() from None
            raise error_from_rpc(error, address=self.address) from None
        except asyncio.CancelledError:
            # Closing the channel looks like this, too; then nobody has cancelled this task.
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise self._endpoint.closed_error() from None
            raise
