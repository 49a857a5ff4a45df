"""The lease of an asyncio session: a stream that one task reads and another one writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from opdispatch_client.aio.one_loop import OneLoop
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.value_lease import (
    RELEASED_AT_ONCE,
    Lease,
    hold_values,
    no_values_error,
    silent_daemon_error,
    why_over,
)
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import remote_pb2

# Seconds between two checks for collected tensors.
_SWEEP = 0.1


class AsyncValueLease:
    """The lease of an asyncio session. For its event loop only, except ``Lease.release``."""

    def __init__(self, channel: grpc.aio.Channel, endpoint: Endpoint, loop: OneLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._is_closed = False
        self._method = hold_values(channel)
        self._opening = asyncio.Lock()
        self.current: Lease | None = None
        """The last opened lease, which may have ended."""
        self._reading: asyncio.Task[None] | None = None

    async def get(self, timeout: float) -> Lease:
        """See ``ValueLease.get``."""
        self._loop.check()
        async with self._opening:
            if self._is_closed:
                raise self._endpoint.closed_error()
            if self.current is not None and not self.current.why_over:
                return self.current
            released: deque[bytes] = deque()
            interval = [1.0]
            call = self._method(_sweep(released, interval))
            try:
                async with asyncio.timeout(timeout):
                    reply = await call.read()
            except TimeoutError:
                call.cancel()
                raise silent_daemon_error(self._endpoint.address, timeout) from None
            except grpc.RpcError as error:
                raise error_from_rpc(error, address=self._endpoint.address) from None
            if not isinstance(reply, remote_pb2.HoldValuesReply):
                raise no_values_error(self._endpoint.address)
            interval[0] = max(reply.interval, 0.1)
            lease = self.current = Lease(reply.session, released.append)
            self._reading = asyncio.create_task(self._read(call, lease))
            return lease

    async def close(self) -> None:
        """See ``ValueLease.close``."""
        self._is_closed = True
        if self.current is not None:
            self.current.why_over = self.current.why_over or "the session is closed"
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _read(self, call: Any, lease: Lease) -> None:
        try:
            await call.read()  # the end, or an error: the daemon sends nothing else
            lease.why_over = lease.why_over or "the daemon has ended the stream"
        except grpc.RpcError as error:
            failure = error_from_rpc(error, address=self._endpoint.address)
            lease.why_over = lease.why_over or why_over(failure)
        finally:
            call.cancel()


async def _sweep(
    released: deque[bytes], interval: list[float]
) -> AsyncIterator[remote_pb2.HoldValuesRequest]:
    """Yield the released ids, and at every interval at least an empty keep-alive message."""
    yield remote_pb2.HoldValuesRequest()
    loop = asyncio.get_running_loop()
    told = loop.time()
    while True:
        await asyncio.sleep(_SWEEP)
        if released or loop.time() - told >= interval[0]:
            ids = [released.popleft() for _ in range(min(len(released), RELEASED_AT_ONCE))]
            told = loop.time()
            yield remote_pb2.HoldValuesRequest(release=ids)
