"""The connection of a blocking session; written by hand, like ``aio.connection``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from opdispatch_client.blocking.calls import BlockingCalls
from opdispatch_client.blocking.value_lease import ValueLease
from opdispatch_client.connection_base import ConnectionBase
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.grpc_forks import GRPC_FORKS
from opdispatch_client.library_upload import OnUpload
from opdispatch_client.listings import Interpreter, ServerInfo
from opdispatch_client.operator_catalog import OperatorCatalog
from opdispatch_client.read_timeout import read_within
from opdispatch_client.rpcs import Load, Rpc
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError
from opdispatch_wire.status import error_from_rpc

T = TypeVar("T")


class Connection(ConnectionBase):
    """A channel for any number of threads, and the parts of a session that use it."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        GRPC_FORKS.note_use(endpoint.address, asyncio=False)
        self._channel = endpoint.channel()
        self._closing = threading.Event()

    def make_calls(
        self,
        introduce: Callable[[], tuple[ServerInfo, int]],
        list_interpreters: Callable[[], list[Interpreter]],
    ) -> BlockingCalls:
        """Return the object that sends a session's calls over this connection."""
        return BlockingCalls(self.endpoint, self._channel, introduce, list_interpreters)

    def make_lease(self) -> ValueLease:
        """Return the lease of a session's remote tensors, which is opened on first use."""
        return ValueLease(self._channel, self.endpoint)

    def make_catalog(self) -> OperatorCatalog:
        """Return the catalog in which ``session.ops`` looks up names."""
        return OperatorCatalog(self.send)

    def send(self, rpc: Rpc[T], *, timeout: float | None = None, wait: float | None = None) -> T:
        """Send a request; return the content of its reply. Raises an OpdispatchError.

        ``wait`` is how many seconds to wait for a daemon that restarts; None: the session's limit.
        """
        seconds = rpc.deadline(timeout or self.endpoint.timeout)
        waiting = self._wait_for_daemon(seconds, wait)
        while True:
            try:
                return self._send_once(rpc, seconds)
            except (DaemonUnavailableError, RefusedError) as error:
                pause = waiting.pause_after(error, is_repeatable=rpc.is_repeatable)
            self._closing.wait(pause)

    def begin_close(self) -> bool:
        """Begin closing like ``ConnectionBase.begin_close``."""
        self._closing.set()
        return super().begin_close()

    def stream(self, rpc: Rpc[T]) -> Generator[T, None, None]:
        """Send a request; yield each reply, for which the session's timeout applies anew."""
        seconds = rpc.deadline(self.endpoint.timeout)
        method = self._method(rpc, self._channel.unary_stream)
        with self._own_errors():
            call = method(rpc.request, metadata=rpc.metadata)
            try:
                for message in read_within(call, rpc.what, seconds):
                    yield rpc.read(message)
            finally:
                call.cancel()

    def upload(self, load: Load, on_upload: OnUpload | None) -> None:
        """Upload the files of a library."""
        self._upload_over(self._channel, load, on_upload).run()

    def close(self) -> None:
        """Close the channel. Idempotent."""
        self._channel.close()

    def _send_once(self, rpc: Rpc[T], seconds: float | None) -> T:
        method = self._method(rpc, self._channel.unary_unary)
        with self._own_errors():
            reply = method(rpc.request, timeout=seconds, metadata=rpc.metadata)
        return rpc.read(reply)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, ValueError) as error:
            # gRPC raises ValueError for a channel that is already closed.
            if self.is_closed:
                raise self.endpoint.closed_error() from None
            if not isinstance(error, grpc.RpcError):
                raise
            raise error_from_rpc(error, address=self.endpoint.address) from None
