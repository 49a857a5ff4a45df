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

    Every method that asks the daemon raises the OpdispatchError that the daemon reports, and on its
    own DaemonUnavailableError if the daemon is gone or the session is closed, DeadlineExceededError
    when the session's timeout passes, and MessageTooLargeError before it sends a request that
    exceeds the limit. Cancelling a task cancels the request that it waits for. In another event
    loop, methods raise EventLoopError.
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
        """The kind of lane that calls use: "local", "stream" or "grpc"."""
        return self._calls.lane

    async def refresh_server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Repeat the handshake with the daemon, and adopt its message limit."""
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

        Files are uploaded. Without a `name` the library is named after the file or module. It goes
        to `interpreter`, to any interpreter that has the device `on` (``"cpu"``, ``"cuda:1"``,
        ``"privateuseone"`` where a library has registered a backend for it), or to one that the
        daemon chooses; and then to others, until `interpreters` of them hold it. If the same
        content is loaded already and `interpreter` does not hold it, that interpreter becomes a
        replica.

        A new version replaces the previous one when as many interpreters have imported it as serve
        the previous one, or as many of them as are available; with `min_ready`, when that many
        have. Until then calls use the previous version.

        Raises LibraryLoadError, or the error of the registration, with the traceback in
        ``facts["traceback"]``; nothing is left behind then. Raises WaitTimeoutError if another
        client's import had not ended when the session's timeout passed.

        With `requirements` (the path of a requirements file, or its lines) the library gets
        interpreters in an environment that has them installed; with `python`, in an existing
        environment. Without either, the ``# /// script`` metadata in the file applies. With
        `isolated`, no other library is loaded into its interpreters, and they end with it.
        `on_progress` is called with each step; the session's timeout then limits the pause between
        two messages of the daemon.

        A large file is uploaded in chunks, and only as far as the daemon does not have it. If the
        connection breaks, the upload resumes by itself; an upload that was broken off is resumed by
        the next ``load``. `on_upload` is called with the number of bytes that have arrived, and the
        total. Raises JournalError if the daemon's disk is full.
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
        """Unload as ``unload`` does, and report how much memory that frees."""
        return await self._send(rpcs.unload_and_measure(name, version=version))

    async def scale(self, name: str, interpreters: int) -> Library:
        """Set the number of interpreters that hold the active version of a library.

        If there are not as many, interpreters that join later load it. Calls in flight finish where
        they are. Raises LibraryNotFoundError, or the reason why an interpreter cannot hold it.
        """
        return await self._send(rpcs.scale(name, interpreters))

    async def rollback(self, name: str) -> RolledBack:
        """Reactivate the version before the active one, at once.

        The version that was active is kept, so that the next rollback reactivates it. Raises
        LibraryNotFoundError, also if there is no previous version.
        """
        return await self._send(rpcs.rollback(name))

    async def drain(self, interpreter: str, *, undo: bool = False) -> Interpreter:
        """Drain an interpreter: it gets no new libraries or calls; others take over what it holds.

        Returns when its calls have finished, with the state "drained", or shortly before the
        session's timeout, with the state "draining". `undo` puts it back in use. Raises
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
        """Restart a quarantined interpreter; return False if it is not quarantined.

        Raises InterpreterNotFoundError for an interpreter that the daemon does not run itself.
        """
        return await self._send(rpcs.revive(interpreter))

    async def operators(self, pattern: str = "") -> list[OperatorSummary]:
        """Return the operators whose names match a shell pattern, or contain a plain string."""
        found = await self._send(rpcs.list_operators(pattern))
        if not pattern:
            self._catalog.note(found)
        return found

    async def describe(self, operator: str) -> OperatorDescription:
        """Return an operator's schema, documentation and kernels. Raises OperatorNotFoundError."""
        described = await self._send(rpcs.describe(operator))
        self._catalog.note_description(described)
        return described

    async def table(self, operator: str) -> list[TableRow]:
        """Return an operator's computed dispatch table. Raises OperatorNotFoundError."""
        return await self._send(rpcs.get_table(operator))

    async def wait_for_def(self, operator: str, timeout: float | None = 2.0) -> OperatorSummary:
        """Wait until an operator is defined, for at most `timeout` seconds; None: without limit.

        The daemon checks at once, and after every publication. The name includes the overload name,
        if there is one. Raises WaitTimeoutError, which says which loads were expected to define it.
        """
        return await self._send(rpcs.wait_for_def(operator, timeout))

    async def wait_for_impl(
        self, operator: str, key: str | None = None, timeout: float | None = 2.0
    ) -> KernelSummary:
        """Wait until an operator has a kernel of its own for a dispatch key, such as "CUDA".

        The default key is CompositeImplicitAutograd, as for a registration without one. Everything
        else is as for ``wait_for_def``. Also raises DispatchKeyError.
        """
        return await self._send(rpcs.wait_for_impl(operator, key, timeout))

    async def watch_registry(
        self, from_epoch: int | None = None, instance: str = "", *, activity: bool = False
    ) -> AsyncGenerator[RegistryChange, None]:
        """Yield the registry, and then each change as it happens, until the generator is closed.

        With `from_epoch` and `instance`, taken from an earlier change, the first change has only
        the operators that have changed since then, if the daemon still knows them. Changes that
        arrive while the previous one is being processed are merged. With `activity`, the activity
        of interpreters and calls is reported every second. Raises RefusedError when the daemon
        stops, and DeadlineExceededError after ten seconds plus the session's timeout without a
        message.
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
        """Check the daemon's registry, and that interpreters agree with it.

        Return the violations.
        """
        return await self._send(rpcs.check_invariants())

    async def close(self) -> None:
        """Close the connection. Idempotent. Calls of other tasks fail."""
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
        """Perform the handshake with the daemon.

        ``wait`` is how long it may be away, in seconds.
        """
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
        return await self._send(rpc)  # a daemon of an older version


async def open_session(endpoint: Endpoint) -> AsyncSession:
    """Return a connected session. Raises the errors of ``connect``."""
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
