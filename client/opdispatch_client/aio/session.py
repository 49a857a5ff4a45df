"""The asyncio session with a daemon.

async with opdispatch_client.aio.connect() as session:
    await session.load("image_ops.py")
    edges = await session.ops.image.sobel(picture)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Self

from opdispatch.errors import OpdispatchError
from opdispatch_client import rpcs
from opdispatch_client.aio.calling import AsyncCallingSession
from opdispatch_client.aio.connection import AsyncConnection
from opdispatch_client.aio.remote_calls import AsyncRemoteCalls
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.library_upload import OnUpload
from opdispatch_client.listings import (
    Interpreter,
    KernelSummary,
    Library,
    LoadedLibrary,
    OperatorDescription,
    OperatorSummary,
    RegistryChange,
    RolledBack,
    ServerInfo,
    TableRow,
    UnloadedLibrary,
)
from opdispatch_client.request_arguments import check_callable, check_seconds
from opdispatch_client.rpcs import OnProgress, Rpc, cut_short_error, is_unknown_method
from opdispatch_client.session_base import SessionBase
from opdispatch_wire.errors import DeadlineExceededError
from opdispatch_wire.requirements_file import Requirements


class AsyncSession(SessionBase, AsyncCallingSession):
    """A session with one daemon; ``connect`` makes one. The tasks of one event loop may share it.

    Every method that asks the daemon raises the OpdispatchError that the daemon reports, and
    of its own DaemonUnavailableError when the daemon is gone or the session is closed,
    DeadlineExceededError when the session's timeout passes, and MessageTooLargeError before
    it sends a request that is over the limit. Cancelling a task cancels the request that it waits
    for. In another event loop, methods raise EventLoopError.
    """

    _connection: AsyncConnection

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection = AsyncConnection(endpoint)
        self._send = self._connection.send
        self._calls = self._connection.make_calls(self._introduce, self._look_at_interpreters)
        self._memory = self._calls.memory
        self._remote = AsyncRemoteCalls(endpoint, self._connection.make_lease(), self._calls.call)
        self._catalog = self._connection.make_catalog()

    @property
    def lane(self) -> str:
        """How calls travel: "local", "stream" or "grpc"."""
        return self._calls.lane

    async def refresh_server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Ask the daemon again who it is, and take over its message limit."""
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
        """Load a library: a ``.py`` or ``.zip`` file, a package folder, or a module name.

        Files are uploaded. Without a `name` it is called like the file or module. It goes to
        `interpreter` (or `on` that one), to any that has the device `on` (``"cpu"``, ``"cuda:1"``,
        ``"privateuseone"`` where a library has brought a backend for it), or wherever the daemon
        chooses; and then to others, until `interpreters` of them hold it. Naming an interpreter
        that does not hold what is loaded already makes that one a replica.

        A new version is published, in the place of the one before, when as many interpreters have
        imported it as serve that one, as far as there are any; with `min_ready`, when that many
        have. Until then calls go on with the version before.

        Raises LibraryLoadError, or the registration's own error, with the traceback in
        ``facts["traceback"]``; nothing is left behind then. WaitTimeoutError if another client's
        import was still awaited at the end of the session's timeout.

        With `requirements` (the path of a requirements file, or its lines) it gets interpreters in
        an environment that has them; with `python`, in an existing environment. Without either, the
        ``# /// script`` metadata in the file counts. With `isolated`, nothing else is loaded into
        its interpreters, and they end with it. `on_progress` is called with each step of that; the
        session's timeout is then how long the daemon may say nothing.

        A large file is uploaded in chunks, and only what the daemon does not have. If the
        connection breaks, the upload goes on by itself; one that was broken off is gone on with by
        the next ``load``. `on_upload` is called with the bytes that have arrived, and their total.
        Raises JournalError if the daemon's disk is full.
        """
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
            max_message_bytes=self._connection.limit,
        )
        load = await asyncio.to_thread(read)
        rpc = load.rpc
        if load.content is not None:
            await self._connection.upload(load, on_upload)
        progress = rpcs.with_progress(rpc)
        if progress is None:
            return await self._send(rpc)
        return await self._load_in_steps(rpc, progress, on_progress)

    async def unload(self, name: str, *, version: int | None = None) -> Library | None:
        """Unload every version of a library, or one; return the version active afterwards.

        Raises LibraryNotFoundError.
        """
        return await self._send(rpcs.unload(name, version=version))

    async def unload_and_measure(self, name: str, *, version: int | None = None) -> UnloadedLibrary:
        """Unload as ``unload`` does, and tell how much memory that gives back."""
        return await self._send(rpcs.unload_and_measure(name, version=version))

    async def scale(self, name: str, interpreters: int) -> Library:
        """Set the number of interpreters that hold the active version of a library.

        If there are not as many, later ones are given it when they come. Calls in flight finish
        where they are. Raises LibraryNotFoundError, or why an interpreter cannot hold it.
        """
        return await self._send(rpcs.scale(name, interpreters))

    async def rollback(self, name: str) -> RolledBack:
        """Make the version before the active one active again, at once.

        What was active is kept, so that the next rollback brings it back. Raises
        LibraryNotFoundError, also if there is no version before.
        """
        return await self._send(rpcs.rollback(name))

    async def drain(self, interpreter: str, *, undo: bool = False) -> Interpreter:
        """Empty an interpreter: no new libraries, no new calls; others get what it holds.

        Returns when its calls have finished, or the session's timeout is nearly over: the state
        is "drained" then, or still "draining". `undo` puts it in use again. Raises
        InterpreterNotFoundError.
        """
        return await self._send(rpcs.drain(interpreter, undo=undo))

    async def libraries(self, *, all_versions: bool = False) -> list[Library]:
        """Return the loaded libraries.

        With `all_versions` also those kept below a newer version.
        """
        return await self._send(rpcs.list_libraries(all_versions=all_versions))

    async def interpreters(self) -> list[Interpreter]:
        """Return the worker interpreters that are connected to the daemon, and quarantined ones."""
        return await self._send(rpcs.list_interpreters())

    async def revive(self, interpreter: str) -> bool:
        """Start a quarantined interpreter again; return False if it is not quarantined.

        Raises InterpreterNotFoundError for one that the daemon does not run itself.
        """
        return await self._send(rpcs.revive(interpreter))

    async def operators(self, pattern: str = "") -> list[OperatorSummary]:
        """Return the operators whose name matches a shell pattern, or contains a plain text."""
        found = await self._send(rpcs.list_operators(pattern))
        if not pattern:
            self._catalog.note(found)
        return found

    async def describe(self, operator: str) -> OperatorDescription:
        """Return schema, documentation and kernels of an operator. Raises OperatorNotFoundError."""
        described = await self._send(rpcs.describe(operator))
        self._catalog.note_description(described)
        return described

    async def table(self, operator: str) -> list[TableRow]:
        """Return an operator's computed dispatch table. Raises OperatorNotFoundError."""
        return await self._send(rpcs.get_table(operator))

    async def wait_for_def(self, operator: str, timeout: float | None = 2.0) -> OperatorSummary:
        """Wait until an operator is defined, for at most `timeout` seconds, or any time with None.

        What counts is that it is defined when the daemon looks: at once, and whenever something
        has been published. The name has the overload's, if it has one. Raises WaitTimeoutError,
        which says who was expected to define it.
        """
        return await self._send(rpcs.wait_for_def(operator, timeout))

    async def wait_for_impl(
        self, operator: str, key: str | None = None, timeout: float | None = 2.0
    ) -> KernelSummary:
        """Wait until an operator has a kernel of its own for a dispatch key, such as "CUDA".

        Without a key it is CompositeImplicitAutograd, as for a registration without one. The
        rest is as for ``wait_for_def``. Raises DispatchKeyError, too.
        """
        return await self._send(rpcs.wait_for_impl(operator, key, timeout))

    async def watch_registry(
        self, from_epoch: int | None = None, instance: str = "", *, activity: bool = False
    ) -> AsyncGenerator[RegistryChange, None]:
        """Yield what is registered, and then each change of it as it comes, until it is closed.

        With `from_epoch` and `instance`, from an earlier change, the first one has only the
        operators that have changed since then, if the daemon still knows that. Changes that come
        while the one before is dealt with come as one. With `activity`, what interpreters and calls
        are doing comes every second. Raises RefusedError when the daemon stops, and
        DeadlineExceededError when it says nothing for ten seconds and the session's timeout.
        """
        rpc = rpcs.watch_registry(from_epoch, instance, activity=activity)
        change: RegistryChange | None = None
        async with aclosing(self._connection.stream(rpc)) as parts:
            async for part in parts:
                change = part if change is None else change.joined_by(part)
                if not part.more:
                    whole, change = change, None
                    if not whole.is_empty:
                        yield whole

    async def check_invariants(self) -> list[str]:
        """Check the daemon's registry, and that interpreters agree; return the violations."""
        return await self._send(rpcs.check_invariants())

    async def close(self) -> None:
        """Close the connection; may be called again. Calls of other tasks fail."""
        if not self._connection.begin_close():
            return  # see Note [Sessions in forked children]
        self._catalog.close()
        await self._remote.close()
        self._calls.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _introduce(self, wait: float = 0.0) -> tuple[ServerInfo, int]:
        """Ask the daemon who it is; ``wait`` is how many seconds it may be away."""
        timeout = self._endpoint.handshake_timeout
        rpc = rpcs.get_server_info()
        info = self._introduced(await self._send(rpc, timeout=timeout, wait=wait))
        return info, self._connection.limit

    async def _look_at_interpreters(self) -> list[Interpreter]:
        return await self._send(rpcs.list_interpreters(), timeout=self._endpoint.handshake_timeout)

    async def _load_in_steps(
        self,
        rpc: Rpc[LoadedLibrary],
        steps: Rpc[str | LoadedLibrary],
        on_progress: OnProgress | None,
    ) -> LoadedLibrary:
        try:
            async with aclosing(self._connection.stream(steps)) as replies:
                async for reply in replies:
                    if not isinstance(reply, str):
                        return reply
                    if reply and on_progress:
                        on_progress(reply)
            raise cut_short_error(steps)
        except OpdispatchError as error:
            if not is_unknown_method(error):
                raise
        return await self._send(rpc)  # an older daemon


async def open_session(endpoint: Endpoint) -> AsyncSession:
    """Return a session that is connected. Raises as ``connect`` does."""
    session = AsyncSession(endpoint)
    try:
        await session._calls.open(*await session._introduce(endpoint.connect_wait))
    except DeadlineExceededError:
        await session.close()
        raise endpoint.unanswered_error() from None
    except BaseException:
        await session.close()
        raise
    return session
