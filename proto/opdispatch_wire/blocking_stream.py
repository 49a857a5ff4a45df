"""The calling side of a gRPC stream of calls, for threads that wait.

gRPC sends in a thread of its own and hands what comes to one thread of ours, which hands it on:
every call costs the time of these hand-overs, but any number of calls share them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_wire import lane_messages
from opdispatch_wire.blocking_outbox import BlockingOutbox
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_KEY, check_size, serialize_message
from opdispatch_wire.chunk_assembler import ChunkAssembler, TensorBudget
from opdispatch_wire.chunks import (
    CallTensors,
    LargeMessage,
    chunk_bytes_for,
    chunk_metadata,
    told_chunk_bytes,
)
from opdispatch_wire.detached_tensors import without_large
from opdispatch_wire.errors import WireError
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.pending_calls import OnDone, PendingCalls
from opdispatch_wire.stream_lane import StreamLane
from opdispatch_wire.v1 import execution_pb2

CALL_STREAM = "/opdispatch.v1.ExecutionService/CallStream"
"""The method's name on the wire."""


RESULTS_LIMIT = 2**63 - 1
"""The bytes of results that a caller takes at a time: it has asked for them."""


class BlockingStream:
    """One stream that any number of threads share.

    A call is in ``_large`` while its tensors may be on their way out, and in ``_tensors`` while
    its reply is awaited; whoever takes it out of ``_pending`` takes it out of these. Only the
    thread that reads adds to ``_assembler``.
    """

    def __init__(self, channel: grpc.Channel, limit: int) -> None:
        self.max_message_bytes = limit
        """The longest message that either side takes, in bytes."""
        self.peer = StreamLane()
        """Who is at the other end."""
        self._numbers = itertools.count(1)
        self._pending = PendingCalls()
        self._requests = BlockingOutbox()
        self._chunk_bytes = 0
        self._large: dict[int, LargeMessage] = {}
        self._tensors: dict[int, CallTensors] = {}
        self._assembler = ChunkAssembler(TensorBudget(RESULTS_LIMIT, "the results of the stream"))
        self._is_closed = False
        self._opened = threading.Event()
        self._failure: LaneClosedError | None = None
        method: Any = channel.stream_stream(
            CALL_STREAM, response_deserializer=execution_pb2.CallReply.FromString
        )
        metadata = ((MAX_MESSAGE_BYTES_KEY, str(limit)), chunk_metadata(limit))
        self._call: Any = method(iter(self._requests), metadata=metadata)
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

    @property
    def number(self) -> int:
        """What an interpreter calls this stream; 0 if the other side is none."""
        return self.peer.number

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""
        return len(self._pending)

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes no chunks."""
        return chunk_bytes_for(self.max_message_bytes) if self._chunk_bytes else None

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        tensors: CallTensors | None = None,
    ) -> execution_pb2.CallReply:
        """Sends a call, with an id of its own, and waits for the reply, which may be an error.

        Large tensors of both are in ``tensors``.

        Raises MessageTooLargeError, which says ``what`` is; TimeoutError and LaneClosedError.
        Whatever ends the wait, such as Ctrl-C, cancels the call.
        """
        outcome: list[execution_pb2.CallReply | Exception] = []
        wake = threading.Lock()
        wake.acquire()

        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            outcome.append(result)
            wake.release()

        number = self.begin(request, None, what, on_done, tensors)
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
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        on_done: OnDone,
        tensors: CallTensors | None = None,
    ) -> int:
        """Begins a call and returns its id; see ``BlockingLane.begin`` and ``call``."""
        number = request.id = next(self._numbers)
        if tensors is None:
            payload, tensors = without_large(request, self._chunk_bytes)
            check_size(len(payload), self.max_message_bytes, what)
        else:
            payload = serialize_message(request, self.max_message_bytes, what)

        def forget_and_tell(result: execution_pb2.CallReply | Exception) -> None:
            self._forget(number)
            on_done(result)

        self._tensors[number] = tensors
        message: bytes | LargeMessage = payload
        if tensors.arguments:
            message = self._large[number] = LargeMessage(
                number, tensors.arguments, payload, self._chunk_bytes, tensors.note_sent
            )
        try:
            self._pending.add(number, forget_and_tell, timeout)
        except BaseException:
            self._forget(number)
            raise
        self._requests.put(message)
        return number

    def flush(self) -> None:
        """Does nothing: gRPC's thread sends at once."""

    def cancel(self, number: int) -> None:
        """Nobody waits any more for a call that has begun; it may have ended already."""
        if self._pending.take(number) is not None:
            self._forget(number)
            self._send_cancel(number)

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
                    told = self._call.initial_metadata()
                    self._chunk_bytes = told_chunk_bytes(told, self.max_message_bytes)
                    self.peer = StreamLane.told(told)
                    self._opened.set()
            for reply in self._call:
                if reply.HasField("chunk"):
                    self._take_chunk(reply.id, reply.chunk)
                else:
                    self._take(reply)
        except grpc.RpcError as error:
            why = self._call.details() or str(error)
        except WireError as error:
            why = str(error)
            self._call.cancel()
        finally:
            self._end(why)
            self._assembler.clear()

    def _take(self, reply: execution_pb2.CallReply) -> None:
        number = reply.id
        tensors = self._tensors.get(number)
        results = self._assembler.finish(number)
        if tensors is not None:
            reply = tensors.take_results(reply, results)
        if (on_done := self._pending.take(number)) is not None:
            on_done(reply)

    def _take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        tensors = self._tensors.get(number)
        if tensors is None:
            return  # nobody waits any more
        try:
            self._assembler.take(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:  # there is no memory for it
            if (on_done := self._pending.take(number)) is not None:
                self._send_cancel(number)
                on_done(error)
            return
        tensors.note_received(len(chunk.data), chunk.total)
        if number not in self._tensors:  # given up meanwhile, and not seen there yet
            self._assembler.drop(number)

    def _forget(self, number: int) -> None:
        """Lets go of what is half sent and half received."""
        self._tensors.pop(number, None)
        self._assembler.drop(number)
        large = self._large.pop(number, None)
        if large is not None and not large.is_finished:
            large.is_dropped = True
            self._send_cancel(number)  # the other side must not wait for the rest

    def _send_cancel(self, number: int) -> None:
        cancel = execution_pb2.CallRequest(id=number, cancel=True)
        self._requests.put(cancel.SerializeToString())

    def _end(self, why: str) -> None:
        self._is_closed = True
        if not self._opened.is_set():
            self._failure = LaneClosedError(why)
            self._opened.set()
        self._requests.end()
        self._pending.end(LaneClosedError(why))
