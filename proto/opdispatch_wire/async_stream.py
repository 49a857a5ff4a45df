"""The calling side of a gRPC stream of calls, in an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc
import grpc.aio

from opdispatch_wire import lane_messages
from opdispatch_wire.awaited_replies import AwaitedReplies, Reply
from opdispatch_wire.blocking_stream import CALL_STREAM
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_KEY, serialize_message
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2


class AsyncStream:
    """One stream, with any number of calls in flight. Belongs to the event loop."""

    def __init__(self, channel: grpc.aio.Channel, limit: int) -> None:
        self.max_message_bytes = limit
        """The longest message that either side takes, in bytes."""
        self._replies = AwaitedReplies()
        self._outbox: deque[bytes] = deque()
        self._has_requests = asyncio.Event()
        self._is_closed = False
        method: Any = channel.stream_stream(
            CALL_STREAM, response_deserializer=execution_pb2.CallReply.FromString
        )
        self._call = method(metadata=((MAX_MESSAGE_BYTES_KEY, str(limit)),))
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, channel: grpc.aio.Channel, limit: int) -> AsyncStream:
        """Opens a stream and waits until the other side has done so, too.

        Raises LaneClosedError, also if the other side does not know streams.
        """
        stream = cls(channel, limit)
        try:
            async with asyncio.timeout(lane_messages.HANDSHAKE_TIMEOUT):
                await stream._call.initial_metadata()
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

    def call(self, request: execution_pb2.CallRequest, what: str) -> Reply:
        """Sends a call, with an id of its own; the future has the reply, or LaneClosedError.

        Raises LaneClosedError, and MessageTooLargeError, which says ``what`` is.
        """
        if self._is_closed:
            raise LaneClosedError("the stream is closed")
        number = request.id = self._replies.next_number()
        self._send(serialize_message(request, self.max_message_bytes, what))
        return self._replies.expect(number)

    def cancel(self, number: int) -> None:
        """Tells the other side that nobody waits for the reply of that id any more."""
        if self._replies.forget(number):
            self._send(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())

    def close(self) -> None:
        """Ends the stream; calls that wait end with LaneClosedError. Idempotent."""
        self._end("the stream is closed")
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    def _send(self, payload: bytes) -> None:
        self._outbox.append(payload)
        self._has_requests.set()

    async def _read(self) -> None:
        why = "the other side has ended the stream"
        try:
            while (reply := await self._call.read()) is not grpc.aio.EOF:
                self._replies.take(reply)
            why = await self._call.details() or why
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # Closing the channel looks like a cancellation, too.
            why = getattr(error, "details", lambda: "")() or why
        finally:
            self._end(why)

    async def _write(self) -> None:
        while not self._is_closed:
            await self._has_requests.wait()
            self._has_requests.clear()
            try:
                while self._outbox:
                    await self._call.write(self._outbox.popleft())
            except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                return  # whoever reads learns why

    def _end(self, why: str) -> None:
        self._is_closed = True
        self._has_requests.set()
        self._replies.fail_all(why)
