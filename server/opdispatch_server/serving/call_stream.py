"""The server side of a gRPC stream of calls: ``ExecutionService.CallStream``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from opdispatch_server.metrics.client_calls import ClientConnection
from opdispatch_server.serving.call_protocols import CallRunner, Run
from opdispatch_server.serving.calls_in_flight import CALLS_IN_FLIGHT, CallsInFlight
from opdispatch_server.serving.eager_coroutine import EagerCoroutine, pause
from opdispatch_server.serving.grpc_services import Malformed
from opdispatch_server.serving.incoming_tensors import IncomingTensors
from opdispatch_server.serving.status_answers import Context
from opdispatch_wire.chunks import (
    Buffer,
    LargeMessage,
    MessageOutbox,
    chunk_metadata,
    told_chunk_bytes,
)
from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.chunk_assembler import TensorBudget
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frame_stream import HIGH_WATER, LOW_WATER
from opdispatch_wire.message_size import (
    MAX_MESSAGE_BYTES_DEFAULT,
    MAX_MESSAGE_BYTES_HIGHEST,
    MAX_MESSAGE_BYTES_KEY,
)
from opdispatch_wire.planned_requests import constant_bytes_of
from opdispatch_wire.received_call import read_call

Metadata = Sequence[tuple[str, str]]

# How long the last replies may take before a stream ends with an error, in seconds.
_LAST_REPLIES = 1.0
# If large replies beyond the first have more bytes than this, no more calls are read: sending one
# may take long, and the others must not wait for it.
_LARGE_HIGH_WATER = 64 * 1024 * 1024


class CallStream:
    """Reads calls and writes replies, both in bounded memory. For use in the event loop only.

    Nothing is read while CallsInFlight is full, or while the peer does not read its replies.
    """

    def __init__(
        self,
        runner: CallRunner[Run],
        context: Context,
        budget: TensorBudget,
        limit: int = MAX_MESSAGE_BYTES_DEFAULT,
        at_once: int = CALLS_IN_FLIGHT,
        metadata: Metadata = (),
        client: ClientConnection | None = None,
    ) -> None:
        """Serve a stream.

        ``budget`` limits the tensors that come in chunks, ``limit`` a message. No more calls are
        read while ``at_once`` are in progress. The peer is sent ``metadata``.
        """
        self._runner = runner
        self._metadata = metadata
        self._client = client or ClientConnection("")
        self._context = context
        self._limit = limit
        self._chunk_bytes = told_chunk_bytes(context.invocation_metadata(), limit)
        self._calls = CallsInFlight(
            runner,
            self._send,
            self._set_full,
            _reply_limit(context),
            self._send_large if self._chunk_bytes else None,
            at_once,
        )
        self._incoming = IncomingTensors(budget, self._send)
        self._outbox = MessageOutbox()
        # Replies whose chunks are being sent, by id.
        self._large: dict[int, LargeMessage] = {}
        self._is_full = False
        self._is_over_water = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._writing = EagerCoroutine(self._write())

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        """Serve until the end of the stream. Raises WireError for an invalid message."""
        metadata = (chunk_metadata(self._limit), *self._metadata)
        try:
            try:
                await self._context.send_initial_metadata(metadata)
                async for payload in requests:
                    if not self._take_planned(payload):
                        self._take(payload)
                    if not self._may_read.is_set():
                        await self._may_read.wait()
                self._incoming.close()  # incomplete tensors stay incomplete
                await self._calls.wait_until_answered()
            except Exception:
                # gRPC accepts no status while a reply is being written.
                await self._writing.wait_until_idle(_LAST_REPLIES)
                raise
            await self._writing.wait_until_idle(None)
        finally:
            self._incoming.close()
            self._calls.close()
            self._writing.close()

    async def finish(self) -> None:
        """Wait until all calls received so far are answered."""
        await self._calls.wait_until_answered()
        await self._writing.wait_until_idle(None)

    def _take_planned(self, payload: bytes) -> bool:
        """Begin a planned call; return False if it is to be treated like others."""
        call = self._runner.find_planned(payload)
        if call is None or call.number in self._large or not self._incoming.is_empty:
            return False
        if not self._calls.take_planned(call):
            return False
        self._client.calls += 1
        return True

    def _take(self, payload: bytes) -> None:
        try:
            # Large arguments come in chunks; the rest of the call must be small.
            received = read_call(payload, detaches=False)
        except WireError as error:
            raise Malformed(error.message).error() from None
        request = received.request
        number = request.id
        if request.cancel:
            self._incoming.drop(number)
            if (large := self._large.get(number)) is not None:
                large.is_dropped = True
            self._calls.cancel(number)
            return
        if number in self._calls or number in self._large:
            raise WireError(f"$.id is {number}, and the call of that id is still under way")
        self._client.calls += not request.HasField("chunk")
        if request.HasField("chunk"):
            self._incoming.take(number, request.chunk)
            return
        arguments = self._incoming.finish(number)
        if received.refusal is not None:
            self._calls.refuse(number, received.refusal)
        elif arguments is not None:
            planned = payload if constant_bytes_of(payload) else b""
            self._calls.take(request, arguments=arguments, message=planned)

    def _send(self, reply: FramePayload) -> None:
        if isinstance(reply, MessagePieces):  # for a peer that takes no chunks
            reply = b"".join(reply.parts)
        self._outbox.put(reply)
        self._writing.resume()
        if self._outbox.small_bytes > HIGH_WATER:
            self._is_over_water = True
            self._update_reading()

    def _send_large(self, number: int, tensors: Sequence[Buffer], reply: bytes) -> None:
        large = self._large[number] = LargeMessage(number, tensors, reply, self._chunk_bytes)
        self._outbox.put(large)
        self._writing.resume()
        self._update_reading()

    async def _write(self) -> None:
        # An error ends this: the reader learns from gRPC that the peer has gone.
        while True:
            while (piece := self._outbox.next_piece()) is not None:
                await self._context.write(piece)
                if self._large:
                    self._forget_sent()
                if self._is_over_water and self._outbox.small_bytes <= LOW_WATER:
                    self._is_over_water = False
                    self._update_reading()
            await pause()

    def _forget_sent(self) -> None:
        gone = [n for n, large in self._large.items() if large.is_finished or large.is_dropped]
        for number in gone:
            del self._large[number]
        if gone:
            self._update_reading()

    def _set_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self._update_reading()

    def _update_reading(self) -> None:
        sizes = [large.size for large in self._large.values()]
        if self._is_full or self._is_over_water or sum(sizes[1:]) > _LARGE_HIGH_WATER:
            self._may_read.clear()
        elif not self._may_read.is_set():
            self._incoming.note_pause()
            self._may_read.set()


def _reply_limit(context: Context) -> int:
    """Return the longest reply that the peer accepts, in bytes, if it says so."""
    for key, value in context.invocation_metadata() or ():
        if key == MAX_MESSAGE_BYTES_KEY and isinstance(value, str) and value.isdecimal():
            return max(min(int(value[:12]), MAX_MESSAGE_BYTES_HIGHEST), 1)
    return MAX_MESSAGE_BYTES_HIGHEST
