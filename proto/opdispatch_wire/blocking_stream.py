"""The calling side of a gRPC stream of calls, for threads that wait.

gRPC sends in a thread of its own and hands what comes to one thread of ours, which hands it on:
every call costs the time of these hand-overs, but any number of calls share them.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from opdispatch_wire import lane_messages
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_KEY, serialize_message
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.pending_calls import OnDone, PendingCalls
from opdispatch_wire.v1 import execution_pb2

CALL_STREAM = "/opdispatch.v1.ExecutionService/CallStream"
"""The method's name on the wire."""


class BlockingStream:
    """One stream that any number of threads share."""

    def __init__(self, channel: grpc.Channel, limit: int) -> None:
        self.max_message_bytes = limit
        """The longest message that either side takes, in bytes."""
        self._numbers = itertools.count(1)
        self._pending = PendingCalls()
        # What gRPC's thread sends; None ends it.
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = False
        self._opened = threading.Event()
        self._failure: LaneClosedError | None = None
        method: Any = channel.stream_stream(
            CALL_STREAM, response_deserializer=execution_pb2.CallReply.FromString
        )
        requests: Iterator[bytes] = iter(self._requests.get, None)
        self._call: Any = method(requests, metadata=((MAX_MESSAGE_BYTES_KEY, str(limit)),))
        threading.Thread(target=self._read, name="call-stream", daemon=True).start()

    @classmethod
    def open(cls, channel: grpc.Channel, limit: int) -> BlockingStream:
        """Opens a stream and waits until the other side has done so, too.

        Raises LaneClosedError, also if the other side does not know streams.
        """
        stream = cls(channel, limit)
        if not stream._opened.wait(lane_messages.HANDSHAKE_TIMEOUT):
            stream.close()
            raise LaneClosedError("the other side does not open a stream of calls")
        if stream._failure is not None:
            raise stream._failure
        return stream

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""
        return self._is_closed

    def call(
        self, request: execution_pb2.CallRequest, timeout: float | None, what: str
    ) -> execution_pb2.CallReply:
        """Sends a call, with an id of its own, and waits for the reply, which may be an error.

        Raises MessageTooLargeError, which says ``what`` is; TimeoutError and LaneClosedError.
        Whatever ends the wait, such as Ctrl-C, cancels the call.
        """
        outcome: list[execution_pb2.CallReply | Exception] = []
        wake = threading.Lock()
        wake.acquire()

        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            outcome.append(result)
            wake.release()

        number = self.begin(request, None, what, on_done)
        try:
            woken = wake.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:
            self.cancel(number)
            raise
        if not woken:
            self.cancel(number)
            raise TimeoutError
        result = outcome[0]
        if isinstance(result, Exception):
            raise result
        return result

    def begin(
        self, request: execution_pb2.CallRequest, timeout: float | None, what: str, on_done: OnDone
    ) -> int:
        """Begins a call and returns its id; see ``BlockingLane.begin``."""
        number = request.id = next(self._numbers)
        payload = serialize_message(request, self.max_message_bytes, what)
        self._pending.add(number, on_done, timeout)
        self._requests.put(payload)
        return number

    def flush(self) -> None:
        """Does nothing: gRPC's thread sends at once."""

    def cancel(self, number: int) -> None:
        """Nobody waits any more for a call that has begun; it may have ended already."""
        if self._pending.take(number) is not None:
            cancel = execution_pb2.CallRequest(id=number, cancel=True)
            self._requests.put(cancel.SerializeToString())

    def close(self) -> None:
        """Ends the stream; calls under way end with LaneClosedError. Idempotent."""
        self._end("the stream is closed")
        self._call.cancel()

    def _read(self) -> None:
        why = "the other side has ended the stream"
        try:
            with contextlib.suppress(grpc.RpcError):
                self._call.initial_metadata()
                if self._call.is_active():
                    self._opened.set()
            for reply in self._call:
                if (on_done := self._pending.take(reply.id)) is not None:
                    on_done(reply)
        except grpc.RpcError as error:
            why = self._call.details() or str(error)
        finally:
            self._end(why)

    def _end(self, why: str) -> None:
        self._is_closed = True
        if not self._opened.is_set():
            self._failure = LaneClosedError(why)
            self._opened.set()
        self._requests.put(None)
        self._pending.end(LaneClosedError(why))
