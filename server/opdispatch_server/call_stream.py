"""One client's gRPC stream of calls: ``ExecutionService.CallStream``, in the daemon."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from opdispatch_server.call_router import CallRouter
from opdispatch_server.calls_in_flight import CallsInFlight
from opdispatch_server.grpc_services import Malformed
from opdispatch_server.status_answers import Context
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, MAX_MESSAGE_BYTES_KEY
from opdispatch_wire.frame_stream import HIGH_WATER, LOW_WATER
from opdispatch_wire.v1 import execution_pb2

# How long the last replies may take before a stream ends with an error.
_LAST_REPLIES = 1.0


class CallStream:
    """Reads calls and writes replies, both in bounded memory. Belongs to the event loop.

    Nothing is read while CallsInFlight is full, or while the peer does not take its replies.
    """

    def __init__(self, router: CallRouter, context: Context) -> None:
        self._context = context
        self._calls = CallsInFlight(router, self._send, self._set_full, _reply_limit(context))
        self._outbox: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._has_replies = asyncio.Event()
        self._is_full = False
        self._is_over_water = False
        self._is_ending = False
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def serve(self, requests: AsyncIterator[execution_pb2.CallRequest]) -> None:
        """Serves to the end of the stream. Raises WireError for what makes no sense."""
        await self._context.send_initial_metadata(())
        writing = asyncio.create_task(self._write())
        try:
            try:
                async for request in requests:
                    if isinstance(request, Malformed):
                        raise request.error()
                    self._calls.take(request)
                    await self._may_read.wait()
                await self._calls.wait_until_answered()
            except Exception:
                # gRPC takes no status while a reply is being written.
                await self._finish(writing, _LAST_REPLIES)
                raise
            await self._finish(writing, None)
        finally:
            self._calls.cancel_all()
            writing.cancel()
            await asyncio.wait({writing})
            if not writing.cancelled():
                writing.exception()  # the peer has gone; gRPC has told whoever reads

    async def _finish(self, writing: asyncio.Task[None], timeout: float | None) -> None:
        self._is_ending = True
        self._has_replies.set()
        await asyncio.wait({writing}, timeout=timeout)

    def _send(self, reply: bytes) -> None:
        self._outbox.append(reply)
        self._unsent_bytes += len(reply)
        self._has_replies.set()
        if self._unsent_bytes > HIGH_WATER:
            self._is_over_water = True
            self._update_reading()

    async def _write(self) -> None:
        while True:
            await self._has_replies.wait()
            self._has_replies.clear()
            while self._outbox:
                reply = self._outbox.popleft()
                await self._context.write(reply)
                self._unsent_bytes -= len(reply)
                if self._is_over_water and self._unsent_bytes <= LOW_WATER:
                    self._is_over_water = False
                    self._update_reading()
            if self._is_ending:
                return

    def _set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self._update_reading()

    def _update_reading(self) -> None:
        if self._is_full or self._is_over_water:
            self._may_read.clear()
        else:
            self._may_read.set()


def _reply_limit(context: Context) -> int:
    """The longest reply that the peer takes, in bytes, as far as it says."""
    for key, value in context.invocation_metadata() or ():
        if key == MAX_MESSAGE_BYTES_KEY and isinstance(value, str) and value.isdecimal():
            return max(min(int(value[:12]), MAX_MESSAGE_BYTES_HIGHEST), 1)
    return MAX_MESSAGE_BYTES_HIGHEST
