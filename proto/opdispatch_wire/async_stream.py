"""The calling side of a gRPC stream of calls, in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_wire import lane_messages
from opdispatch_wire.awaited_replies import AwaitedReplies, OnReply, Reply
from opdispatch_wire.blocking_stream import CALL_STREAM, RESULTS_LIMIT
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_KEY, check_size, serialize_message
from opdispatch_wire.chunk_assembler import ChunkAssembler, TensorBudget
from opdispatch_wire.chunks import (
    CallTensors,
    LargeMessage,
    MessageOutbox,
    chunk_bytes_for,
    chunk_metadata,
    told_chunk_bytes,
)
from opdispatch_wire.detached_tensors import without_large
from opdispatch_wire.errors import WireError
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.status import status_from_error
from opdispatch_wire.stream_lane import StreamLane
from opdispatch_wire.v1 import execution_pb2


class AsyncStream:
    """One stream, with any number of calls in flight. Belongs to the event loop."""

    def __init__(self, channel: grpc.aio.Channel, limit: int) -> None:
        self.max_message_bytes = limit
        """The longest message that either side takes, in bytes."""
        self.peer = StreamLane()
        """Who is at the other end."""
        self._replies = AwaitedReplies()
        self._outbox = MessageOutbox()
        self._chunk_bytes = 0
        # Of calls that are under way: what is on its way out, and what belongs to them.
        self._large: dict[int, LargeMessage] = {}
        self._tensors: dict[int, CallTensors] = {}
        self._assembler = ChunkAssembler(TensorBudget(RESULTS_LIMIT, "the results of the stream"))
        self._has_requests = asyncio.Event()
        self._is_closed = False
        self.ended: asyncio.Future[Exception | None]
        self.ended = asyncio.get_running_loop().create_future()
        """Done when the stream has ended without ``close``: the error, or None."""
        method: Any = channel.stream_stream(
            CALL_STREAM, response_deserializer=execution_pb2.CallReply.FromString
        )
        metadata = ((MAX_MESSAGE_BYTES_KEY, str(limit)), chunk_metadata(limit))
        self._call = method(metadata=metadata)
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, channel: grpc.aio.Channel, limit: int) -> AsyncStream:
        """Opens a stream and waits until the other side has done so, too.

        Raises LaneClosedError, also if the other side does not know streams.
        """
        stream = cls(channel, limit)
        try:
            async with asyncio.timeout(lane_messages.HANDSHAKE_TIMEOUT):
                told = tuple(await stream._call.initial_metadata() or ())
            stream._chunk_bytes = told_chunk_bytes(told, limit)
            stream.peer = StreamLane.told(told)
            if stream._call.done():
                raise LaneClosedError(await stream._call.details() or "the stream has ended")
        except TimeoutError:
            stream.close()
            why = "the other side does not open a stream of calls"
            raise LaneClosedError(why) from None
        except grpc.RpcError as error:
            stream.close()
            raise LaneClosedError(str(error)) from error
        except BaseException:
            stream.close()
            raise
        stream._tasks = [asyncio.create_task(stream._read()), asyncio.create_task(stream._write())]
        return stream

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""
        return self._is_closed

    @property
    def number(self) -> int:
        """What an interpreter calls this stream; 0 if the other side is none."""
        return self.peer.number

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes no chunks."""
        return chunk_bytes_for(self.max_message_bytes) if self._chunk_bytes else None

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""
        return len(self._replies)

    def call(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None = None
    ) -> Reply:
        """Sends a call, with an id of its own; the future has the reply, or LaneClosedError.

        Large tensors of both are in ``tensors``. Raises LaneClosedError, and
        MessageTooLargeError, which says ``what`` is.
        """
        message = self._begin(request, what, tensors)
        future = self._replies.expect(request.id)
        self._send(message)
        return future

    def call_then(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        on_reply: OnReply,
        tensors: CallTensors | None = None,
    ) -> None:
        """``call``, but for ``on_reply``, which is called as soon as the reply is read.

        It must not wait for anything, and raise nothing.
        """
        message = self._begin(request, what, tensors)
        self._replies.tell(request.id, on_reply)
        self._send(message)

    def cancel(self, number: int) -> None:
        """Tells the other side that nobody waits for the reply of that id any more."""
        self._forget(number)
        if self._replies.forget(number):
            self._send_cancel(number)

    def close(self) -> None:
        """Ends the stream; calls that wait end with LaneClosedError. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._fail_all("the stream is closed")
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> bytes | LargeMessage:
        """What is to be sent of a call, which has an id then."""
        if self._is_closed:
            raise LaneClosedError("the stream is closed", was_sent=False)
        number = request.id = self._replies.next_number()
        if tensors is None:
            payload, tensors = without_large(request, self._chunk_bytes)
            check_size(len(payload), self.max_message_bytes, what)
        else:
            payload = serialize_message(request, self.max_message_bytes, what)
        self._tensors[number] = tensors
        if not tensors.arguments:
            return payload
        large = self._large[number] = LargeMessage(
            number, tensors.arguments, payload, self._chunk_bytes, tensors.note_sent
        )
        return large

    def _forget(self, number: int) -> None:
        """Lets go of what is half sent and half received."""
        self._tensors.pop(number, None)
        self._assembler.drop(number)
        large = self._large.pop(number, None)
        if large is not None and not large.is_finished:
            large.is_dropped = True
            self._send_cancel(number)  # the other side must not wait for the rest

    def _send_cancel(self, number: int) -> None:
        self._send(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())

    def _send(self, message: bytes | LargeMessage) -> None:
        self._outbox.put(message)
        self._has_requests.set()

    async def _read(self) -> None:
        why = "the other side has ended the stream"
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                if reply.HasField("chunk"):
                    self._take_chunk(reply.id, reply.chunk)
                else:
                    self._take(reply)
            why = await self._call.details() or why
        except WireError as error:
            why = str(error)
            self._call.cancel()
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # Closing the channel looks like a cancellation, too.
            why = getattr(error, "details", lambda: "")() or why
        finally:
            self._end(why)

    def _take(self, reply: execution_pb2.CallReply) -> None:
        number = reply.id
        results = self._assembler.finish(number)
        if (tensors := self._tensors.get(number)) is not None:
            reply = tensors.take_results(reply, results)
        self._forget(number)
        self._replies.take(reply)

    def _take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        tensors = self._tensors.get(number)
        if tensors is None:
            return  # nobody waits any more
        try:
            self._assembler.take(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:  # there is no memory for it
            self._forget(number)
            failure = execution_pb2.CallReply(id=number, error=status_from_error(error))
            if self._replies.take(failure):
                self._send_cancel(number)
            return
        tensors.note_received(len(chunk.data), chunk.total)

    async def _write(self) -> None:
        while not self._is_closed:
            await self._has_requests.wait()
            self._has_requests.clear()
            try:
                while (piece := self._outbox.next_piece()) is not None:
                    await self._call.write(piece)
            except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                return  # whoever reads learns why

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.ended.set_result(LaneClosedError(why))
            self._fail_all(why)

    def _fail_all(self, why: str) -> None:
        self._has_requests.set()
        for number in list(self._tensors):
            self._forget(number)
        self._replies.fail_all(why)
