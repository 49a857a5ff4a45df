"""The blocking session with a daemon.

with connect() as session:
    session.load("image_ops.py")
    edges = session.ops.image.sobel(picture)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_client import rpcs
from opdispatch_client.blocking_calls import BlockingCalls
from opdispatch_client.calling_session import CallingSession
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
from opdispatch_client.load_progress import OnProgress, follow, is_unknown_method
from opdispatch_client.operator_catalog import OperatorCatalog
from opdispatch_client.remote_calls import RemoteCalls
from opdispatch_client.request_arguments import check_callable, check_seconds
from opdispatch_client.rpcs import Rpc
from opdispatch_client.session_base import SessionBase
from opdispatch_wire.addresses import check_socket_owner
from opdispatch_wire.errors import DeadlineExceededError
from opdispatch_wire.requirements_file import Requirements
from opdispatch_wire.status import error_from_rpc

T = TypeVar("T")


def connect(
    address: str | None = None,
    *,
    timeout: float | None = TIMEOUT_DEFAULT,
    max_message_bytes: int | None = None,
    lane: LaneChoice = "auto",
    retry: bool = True,
    direct: bool = True,
) -> Session:
    """Opens a session with the daemon at `address`.

    The address is like ``unix:///run/opdispatch.sock``, ``dns:///host:port`` or
    ``host:port``; without one, it is ``OPDISPATCH_ADDRESS`` or the daemon's default. Each
    request of the session may take `timeout` seconds, or any time with None. Messages are
    limited to the daemon's own limit, or to `max_message_bytes` where that is less. A call whose
    interpreter dies runs again in another one that holds the library, unless its operator writes
    to an argument; never if `retry` is false (see ``Session.with_options``).

    Calls take the local lane, a unix socket without gRPC, if the daemon is a process of the same
    user on the same machine, and gRPC otherwise: one stream for all calls, or a request for each.
    `lane` may insist on "local", "stream" or "grpc". Over the local lane, calls like one that the
    daemon has answered go to the interpreters themselves, unless `direct` is false.

    Raises AddressError for an address that is none, DaemonUnavailableError if nobody answers
    there, WireError if the daemon speaks another version of the protocol.
    """
    endpoint = resolve_endpoint(
        address,
        timeout=timeout,
        max_message_bytes=max_message_bytes,
        lane=lane,
        retry=retry,
        direct=direct,
    )
    session = Session(endpoint)
    try:
        session._calls.open(*session._introduce())
    except DeadlineExceededError:
        session.close()
        raise endpoint.unanswered_error() from None
    except BaseException:
        session.close()
        raise
    return session


class Session(SessionBase, CallingSession):
    """A session with one daemon; ``connect`` makes one. Any number of threads may share it.

    Every method that asks the daemon raises the OpdispatchError that the daemon reports, and
    of its own DaemonUnavailableError when the daemon is gone or the session is closed,
    DeadlineExceededError when the session's timeout passes, and MessageTooLargeError before
    it sends a request that is over the limit. Ctrl-C during a call cancels the call.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        check_socket_owner(endpoint.address)
        GRPC_FORKS.note_use(endpoint.address, asyncio=False)
        self._channel = grpc.insecure_channel(endpoint.target, options=endpoint.options)
        self._calls = BlockingCalls(
            endpoint, self._channel, self._introduce, self._look_at_interpreters
        )
        self._memory = self._calls.memory
        self._remote = RemoteCalls(endpoint, self._channel, self._calls.call)
        self._catalog = OperatorCatalog(self._send)

    @property
    def lane(self) -> str:
        """How calls travel: "local", "stream" or "grpc"."""
        return self._calls.lane

    def refresh_server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Asks the daemon again who it is, and takes over its message limit."""
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        return self._introduced(self._send(rpcs.get_server_info(), timeout=timeout))

    def load(
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
        """Loads a library: a ``.py`` or ``.zip`` file, a package folder, or a module name.

        Files are uploaded. Without a `name` it is called like the file or module. It goes to
        `interpreter` (or `on` that one), to any that has the device `on` (``"cpu"``, ``"cuda:1"``,
        ``"privateuseone"`` where a library has brought a backend for it), or wherever the daemon
        chooses; and then to others, until `interpreters` of them hold it. Naming an interpreter
        that does not hold what is loaded already makes that one a replica.

        A new version is published, in the place of the one before, when as many interpreters have
        imported it as serve that one, as far as there are any; with `min_ready`, when that many
        have. Until then calls go on with the version before.

        Raises LibraryLoadError, or the registration's own error, with the traceback in
        ``facts["traceback"]``; nothing is left behind then. WaitTimeoutError if somebody else's
        import was still awaited at the end of the session's timeout.

        With `requirements` (the path of a requirements file, or its lines) it gets interpreters
        in an environment that has them; with `python`, in an existing environment. Without
        either, the ``# /// script`` metadata in the file counts. With `isolated`, nothing else
        is loaded into its interpreters, and they end with it. `on_progress` is told each step of
        that; the session's timeout is then how long the daemon may say nothing.

        A large file is uploaded in chunks, and only what the daemon does not have. If the
        connection breaks, the upload goes on by itself; one that was broken off is gone on with by
        the next ``load``. `on_upload` is told how many bytes of how many have arrived. Raises
        JournalError if the daemon's disk is full.
        """
        check_callable(on_progress, "on_progress")
        check_callable(on_upload, "on_upload")
        load = rpcs.load(
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
        rpc = load.rpc
        if load.content is not None:
            self._upload(self._channel, load, on_upload).run()
        progress = rpcs.with_progress(rpc)
        if progress is None:
            return self._send(rpc)
        return self._load_in_steps(rpc, progress, on_progress)

    def unload(self, name: str, *, version: int | None = None) -> Library | None:
        """Unloads every version of a library, or one; returns the version active afterwards.

        Raises LibraryNotFoundError.
        """
        return self._send(rpcs.unload(name, version=version))

    def unload_and_measure(self, name: str, *, version: int | None = None) -> UnloadedLibrary:
        """Unloads as ``unload`` does, and tells how much memory that gives back."""
        return self._send(rpcs.unload_and_measure(name, version=version))

    def scale(self, name: str, interpreters: int) -> Library:
        """Has that many interpreters hold the active version of a library.

        If there are not as many, later ones are given it when they come. Calls in flight finish
        where they are. Raises LibraryNotFoundError, or why an interpreter cannot hold it.
        """
        return self._send(rpcs.scale(name, interpreters))

    def rollback(self, name: str) -> RolledBack:
        """Makes the version before the active one active again, at once.

        What was active is kept, so that the next rollback brings it back. Raises
        LibraryNotFoundError, also if there is no version before.
        """
        return self._send(rpcs.rollback(name))

    def drain(self, interpreter: str, *, undo: bool = False) -> Interpreter:
        """Empties an interpreter: no new libraries, no new calls; others get what it holds.

        Returns when its calls have finished, or the session's timeout is nearly over: the state
        is "drained" then, or still "draining". `undo` puts it in use again. Raises
        InterpreterNotFoundError.
        """
        return self._send(rpcs.drain(interpreter, undo=undo))

    def libraries(self, *, all_versions: bool = False) -> list[Library]:
        """The loaded libraries; with `all_versions` also those kept below a newer version."""
        return self._send(rpcs.list_libraries(all_versions=all_versions))

    def interpreters(self) -> list[Interpreter]:
        """The worker interpreters that are connected to the daemon, and quarantined ones."""
        return self._send(rpcs.list_interpreters())

    def revive(self, interpreter: str) -> bool:
        """Has the daemon start a quarantined interpreter again; False if it is not quarantined.

        Raises InterpreterNotFoundError for one that the daemon does not run itself.
        """
        return self._send(rpcs.revive(interpreter))

    def operators(self, pattern: str = "") -> list[OperatorSummary]:
        """The operators whose name matches a shell pattern, or contains a plain text."""
        found = self._send(rpcs.list_operators(pattern))
        if not pattern:
            self._catalog.note(found)
        return found

    def describe(self, operator: str) -> OperatorDescription:
        """Schema, documentation and kernels of an operator. Raises OperatorNotFoundError."""
        return self._send(rpcs.describe(operator))

    def table(self, operator: str) -> list[TableRow]:
        """An operator's computed dispatch table. Raises OperatorNotFoundError."""
        return self._send(rpcs.get_table(operator))

    def wait_for_def(self, operator: str, timeout: float | None = 2.0) -> OperatorSummary:
        """Waits until an operator is defined, for at most `timeout` seconds, or any time with None.

        What counts is that it is defined when the daemon looks: at once, and whenever something
        has been published. The name has the overload's, if it has one. Raises WaitTimeoutError,
        which says who was expected to define it.
        """
        return self._send(rpcs.wait_for_def(operator, timeout))

    def wait_for_impl(
        self, operator: str, key: str | None = None, timeout: float | None = 2.0
    ) -> KernelSummary:
        """Waits until an operator has a kernel of its own for a dispatch key, such as "CUDA".

        Without a key it is CompositeImplicitAutograd, as for a registration without one. The
        rest is as for ``wait_for_def``. Raises DispatchKeyError, too.
        """
        return self._send(rpcs.wait_for_impl(operator, key, timeout))

    def check_invariants(self) -> list[str]:
        """Has the daemon check its registry, and that interpreters agree; what does not hold."""
        return self._send(rpcs.check_invariants())

    def close(self) -> None:
        """Closes the connection; may be called again. Calls of other threads fail."""
        self._closed = True
        if not self._endpoint.is_of_this_process:
            return  # see Note [Sessions in forked children]
        self._remote.close()
        self._calls.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _introduce(self) -> tuple[ServerInfo, int]:
        info = self.refresh_server_info(timeout=self._endpoint.handshake_timeout)
        return info, self._limit

    def _look_at_interpreters(self) -> list[Interpreter]:
        return self._send(rpcs.list_interpreters(), timeout=self._endpoint.handshake_timeout)

    def _send(self, rpc: Rpc[T], *, timeout: float | None = None) -> T:
        method = self._method(rpc, self._channel.unary_unary)
        with self._errors_of_ours():
            deadline = rpc.deadline(timeout or self._endpoint.timeout)
            reply = method(rpc.request, timeout=deadline, metadata=rpc.metadata)
        return rpc.read(reply)

    def _load_in_steps(
        self,
        rpc: Rpc[LoadedLibrary],
        steps: Rpc[str | LoadedLibrary],
        on_progress: OnProgress | None,
    ) -> LoadedLibrary:
        method = self._method(steps, self._channel.unary_stream)
        try:
            with self._errors_of_ours():
                call = method(steps.request, metadata=steps.metadata)
                return follow(call, steps, on_progress, self._endpoint.timeout)
        except OpdispatchError as error:
            if not is_unknown_method(error):
                raise
        return self._send(rpc)  # an older daemon

    @contextmanager
    def _errors_of_ours(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, ValueError) as error:
            # gRPC raises ValueError for a channel that is closed already.
            if self._closed:
                raise self._endpoint.closed_error() from None
            if not isinstance(error, grpc.RpcError):
                raise
            raise error_from_rpc(error, address=self.address) from None
