"""What keeps a session's remote tensors alive: a stream that is open for as long as they live.

Note [Letting go of a remote tensor]
    The collector may strike at any moment, in any thread, while locks are held. So a tensor that
    is collected only puts its id into a queue that takes that (``SimpleQueue``, or a deque for
    asyncio), and the stream's own thread or task sends it, together with others. Tensors know
    the queue, and not the lease: they do not keep it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.remote_values import PREFIX_BYTES
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import remote_pb2
from opdispatch_wire.values import check_text

HOLD_VALUES = "/opdispatch.v1.ExecutionService/HoldValues"

# So many are told in one message, which has a limit.
_AT_ONCE = 10_000
# Those that are released within this time are told together.
_GATHERING = 0.02
# An asyncio session looks so often for what was collected, in seconds.
_SWEEP = 0.1

Release = Callable[[bytes], None]


class Lease:
    """One session's name for its values, for as long as the daemon holds them.

    ``release`` may be called at any moment, in any thread.
    """

    def __init__(self, session: bytes, release: Release) -> None:
        self.session = session
        self.release = release
        self.why_over = ""
        """Why the values are gone; empty while they are not."""

    def new_keep(self, on: str | None = None, device: str | None = None) -> remote_pb2.Keep:
        """Asks for the results of one call to be kept, in an interpreter or on a device.

        Raises ArgumentError for what is no text, and WireError for text that cannot be sent.
        """
        return remote_pb2.Keep(
            session=self.session,
            prefix=secrets.token_bytes(PREFIX_BYTES),
            on=None if on is None else check_text(on, "on"),
            device=None if device is None else check_text(device, "device"),
        )


class ValueLease:
    """The lease of a blocking session, made when it is first needed.

    ``_mutex`` protects ``_lease``, ``_stream`` and ``_is_closed``: at most one stream is open,
    whose lease it is.
    """

    def __init__(self, channel: grpc.Channel, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_closed = False
        self._method = _hold_values(channel)
        self._mutex = threading.Lock()
        self._lease: Lease | None = None
        self._stream: _Stream | None = None

    def get(self, timeout: float) -> Lease:
        """The lease, opened if there is none. Raises what the daemon says, and
        DaemonUnavailableError if it says nothing in time, or after ``close``.
        """
        self._endpoint.check_process()  # before a mutex, which another thread may have had
        with self._mutex:
            if self._is_closed:
                raise self._endpoint.closed_error()
            if self._lease is not None and not self._lease.why_over:
                return self._lease
            self._stream = _Stream(self._method, self._endpoint.address)
            self._lease = self._stream.open(timeout)
            return self._lease

    def close(self) -> None:
        """Ends the stream: the daemon lets go of everything. Idempotent."""
        with self._mutex:
            self._is_closed = True
            if self._stream is not None:
                self._stream.close()


class _Stream:
    """One stream, whose requests gRPC takes in a thread of its own."""

    def __init__(self, method: Any, address: str) -> None:
        self._address = address
        self._released: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._opened = threading.Event()
        self._interval = 1.0
        self._lease: Lease | None = None
        self._error: OpdispatchError | None = None
        self._call = method(self._requests())

    def open(self, timeout: float) -> Lease:
        threading.Thread(target=self._read, name="value-lease", daemon=True).start()
        if not self._opened.wait(timeout):
            self.close()
            raise _silence(self._address, timeout)
        if self._lease is None:
            assert self._error is not None, "the stream has ended without a word"
            raise self._error
        return self._lease

    def close(self) -> None:
        self._closing.set()
        self._released.put(b"")  # wakes who waits there
        self._call.cancel()

    def _read(self) -> None:
        why = "the daemon has ended the stream"
        try:
            for reply in self._call:
                self._interval = max(reply.interval, 0.1)
                self._lease = Lease(reply.session, self._released.put)
                self._opened.set()
        except grpc.RpcError as error:
            self._error = error_from_rpc(error, address=self._address)
            why = self._error.message
        if self._error is None:
            self._error = _refusal(self._address)
        if self._lease is not None:
            self._lease.why_over = "the session is closed" if self._closing.is_set() else why
        self._closing.set()
        self._released.put(b"")
        self._opened.set()

    def _requests(self) -> Iterator[remote_pb2.HoldValuesRequest]:
        yield remote_pb2.HoldValuesRequest()
        while not self._closing.is_set():
            yield remote_pb2.HoldValuesRequest(release=self._collect())

    def _collect(self) -> list[bytes]:
        """What was released, as soon as something is; nothing after a while."""
        try:
            ids = [self._released.get(timeout=self._interval)]
        except queue.Empty:
            return []
        self._closing.wait(_GATHERING)
        with contextlib.suppress(queue.Empty):
            while len(ids) < _AT_ONCE:
                ids.append(self._released.get_nowait())
        return [number for number in ids if number]


class AsyncValueLease:
    """The lease of an asyncio session. Belongs to the event loop, but for ``Lease.release``."""

    def __init__(self, channel: grpc.aio.Channel, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._is_closed = False
        self._method = _hold_values(channel)
        self._opening = asyncio.Lock()
        self._lease: Lease | None = None
        self._reading: asyncio.Task[None] | None = None

    async def get(self, timeout: float) -> Lease:
        """See ``ValueLease.get``."""
        self._endpoint.check_process()
        async with self._opening:
            if self._is_closed:
                raise self._endpoint.closed_error()
            if self._lease is not None and not self._lease.why_over:
                return self._lease
            released: deque[bytes] = deque()
            interval = [1.0]
            call = self._method(_sweep(released, interval))
            try:
                async with asyncio.timeout(timeout):
                    reply = await call.read()
            except TimeoutError:
                call.cancel()
                raise _silence(self._endpoint.address, timeout) from None
            except grpc.RpcError as error:
                raise error_from_rpc(error, address=self._endpoint.address) from None
            if not isinstance(reply, remote_pb2.HoldValuesReply):
                raise _refusal(self._endpoint.address)
            interval[0] = max(reply.interval, 0.1)
            lease = self._lease = Lease(reply.session, released.append)
            self._reading = asyncio.create_task(self._read(call, lease))
            return lease

    async def close(self) -> None:
        """See ``ValueLease.close``."""
        self._is_closed = True
        if self._lease is not None:
            self._lease.why_over = self._lease.why_over or "the session is closed"
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _read(self, call: Any, lease: Lease) -> None:
        try:
            await call.read()  # the end, or an error: nothing else follows
            lease.why_over = lease.why_over or "the daemon has ended the stream"
        except grpc.RpcError as error:
            why = error_from_rpc(error, address=self._endpoint.address).message
            lease.why_over = lease.why_over or why
        finally:
            call.cancel()


async def _sweep(
    released: deque[bytes], interval: list[float]
) -> AsyncIterator[remote_pb2.HoldValuesRequest]:
    """Says what was released, and at every interval at least that the client is there."""
    yield remote_pb2.HoldValuesRequest()
    loop = asyncio.get_running_loop()
    told = loop.time()
    while True:
        await asyncio.sleep(_SWEEP)
        if released or loop.time() - told >= interval[0]:
            ids = [released.popleft() for _ in range(min(len(released), _AT_ONCE))]
            told = loop.time()
            yield remote_pb2.HoldValuesRequest(release=ids)


def _hold_values(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        HOLD_VALUES,
        request_serializer=remote_pb2.HoldValuesRequest.SerializeToString,
        response_deserializer=remote_pb2.HoldValuesReply.FromString,
    )


def _silence(address: str, timeout: float) -> DaemonUnavailableError:
    return DaemonUnavailableError(
        f"{address} did not answer the request to hold values within {timeout:g} s",
        address=address,
    )


def _refusal(address: str) -> DaemonUnavailableError:
    return DaemonUnavailableError(f"{address} holds no values", address=address)
