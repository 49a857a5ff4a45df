"""The calling side of a gRPC stream of calls, in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_wire.chunks import CallTensors, LargeMessage, MessageOutbox
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.awaited_calls import AwaitedCalls
from opdispatch_wire.lanes.awaited_replies import AwaitedReplies, Reply
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.stream_tensors import CALL_STREAM, TensorStream, closed_error, shown
from opdispatch_wire.message_size import parse_message
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2


class AsyncStream(AwaitedCalls, TensorStream):
    """One stream, with any number of calls in flight. For use in its event loop only."""

    def __init__(self, channel: grpc.aio.Channel, limit: int, authorization: str = "") -> None:
        super().__init__(limit, self._send_call)
        self._replies = AwaitedReplies("the stream is closed")
        self._outbox = MessageOutbox()
        self._has_requests = asyncio.Event()
        self._is_closed = False
        self.ended: asyncio.Future[Exception | None]
        self.ended = asyncio.get_running_loop().create_future()
        """Done when the stream has ended without ``close``: the error, or None."""
        method: Any = channel.stream_stream(CALL_STREAM)
        self._call = method(metadata=(*self._tensors.metadata, *shown(authorization)))
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, channel: grpc.aio.Channel, limit: int, authorization: str = ""
    ) -> AsyncStream:
        """Open a stream and wait until the other side has accepted it.

        Raises LaneClosedError, also if the other side does not support streams, and
        NotAdmittedError if it refuses the ``authorization``.
        """
        stream = cls(channel, limit, authorization)
        try:
            async with asyncio.timeout(lane_messages.HANDSHAKE_TIMEOUT):
                told = tuple(await stream._call.initial_metadata() or ())
            stream._welcomed(told)
            if stream._call.done():
                why = await stream._call.details() or "the stream has ended"
                raise closed_error(await stream._call.code(), why)
        except TimeoutError:
            stream.close()
            why = "the other side did not accept a stream of calls in time"
            raise LaneClosedError(why) from None
        except grpc.RpcError as error:
            stream.close()
            raise closed_error(error.code(), str(error)) from error
        except BaseException:
            stream.close()
            raise
        stream._tasks = [asyncio.create_task(stream._read()), asyncio.create_task(stream._write())]
        return stream

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended, so that calls on it fail."""
        return self._is_closed

    def call(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None = None
    ) -> Reply:
        """Send a call under a new id; the future gets its reply, or fails with LaneClosedError.

        ``tensors`` holds the large tensors of the request, and receives those of the reply. Raises
        LaneClosedError, and MessageTooLargeError, which names the call ``what``.
        """
        message = self._begin(request, what, tensors)
        future = self._replies.expect(request.id)
        self._send_call(message)
        return future

    def cancel(self, number: int) -> None:
        """Cancel a call, whose reply will be discarded."""
        self._tensors.forget(number)
        if self._replies.forget(number):
            self._tensors.send_cancel(number)

    def close(self) -> None:
        """End the stream; calls that wait end with LaneClosedError. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._fail_all("the stream is closed")
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> bytes | LargeMessage:
        """Assign the call an id and return the message to send."""
        request.id = self._replies.next_number()
        return self._tensors.begin(request, what, tensors)

    def _send_call(self, message: bytes | LargeMessage) -> None:
        self._outbox.put(message)
        self._has_requests.set()

    async def _read(self) -> None:
        why, code = "the other side ended the stream", None
        try:
            while (payload := await self._call.read()) is not grpc.aio.EOF:
                if not self._replies.take_plain(payload):
                    self._take(payload)
            why, code = await self._call.details() or why, await self._call.code()
        except WireError as error:
            why = str(error)
            self._call.cancel()
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # Closing the channel raises a cancellation, too.
            why = getattr(error, "details", lambda: "")() or why
            code = error.code() if isinstance(error, grpc.RpcError) else None
        finally:
            self._end(why, code)

    def _take(self, payload: bytes) -> None:
        reply = execution_pb2.CallReply()
        parse_message(reply, payload)
        number = reply.id
        if reply.HasField("chunk"):
            self._take_chunk(number, reply.chunk)
            return
        reply = self._tensors.read_reply(reply)
        self._tensors.forget(number)
        self._replies.take(reply)

    def _take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        if number in self._replies:
            self._tensors.expect_inline(number)
        try:
            self._tensors.take_chunk(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:  # no memory for the tensor
            self._tensors.forget(number)
            failure = execution_pb2.CallReply(id=number, error=status_from_error(error))
            if self._replies.take(failure):
                self._tensors.send_cancel(number)

    async def _write(self) -> None:
        while not self._is_closed:
            await self._has_requests.wait()
            self._has_requests.clear()
            try:
                while (piece := self._outbox.next_piece()) is not None:
                    await self._call.write(piece)
            except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                return  # the reading task gets the reason

    def _end(self, why: str, code: grpc.StatusCode | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            failure = closed_error(code, why)
            self.ended.set_result(failure)
            self._fail_all(why, type(failure))

    def _fail_all(self, why: str, failure: type[LaneClosedError] = LaneClosedError) -> None:
        self._has_requests.set()
        self._tensors.end()
        self._replies.fail_all(why, kind=failure)
