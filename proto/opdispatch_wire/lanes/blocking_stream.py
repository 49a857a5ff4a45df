"""The calling side of a gRPC stream of calls, for threads.

gRPC sends in its own thread, and delivers replies to one thread here, which passes them on. Each
call takes the time of these switches, but any number of calls share the threads.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.blocking_outbox import BlockingOutbox
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.patient_wait import Watch, wait_unless_given_up
from opdispatch_wire.lanes.pending_calls import Decode, OnDone, PendingCalls
from opdispatch_wire.lanes.stream_tensors import CALL_STREAM, TensorStream, closed_error, shown
from opdispatch_wire.message_size import parse_message
from opdispatch_wire.planned_calls import read_id
from opdispatch_wire.v1 import execution_pb2


class _Waiter:
    """One thread that waits for the outcome of a call."""

    __slots__ = ("_outcome", "_wake")

    def __init__(self) -> None:
        self._outcome: Any = None
        self._wake = threading.Lock()
        self._wake.acquire()

    def note(self, outcome: Any) -> None:
        """Store the outcome (the reply, the decoded reply, or an error) and wake the thread."""
        self._outcome = outcome
        self._wake.release()

    def wait(self, until: float | None) -> Any:
        """Wait for the outcome and return it. Raises TimeoutError at ``until``.

        ``until`` is a time of ``time.monotonic``. May return only once.
        """
        left = -1.0 if until is None else max(until - time.monotonic(), 0.0)
        if not self._wake.acquire(timeout=left):
            raise TimeoutError
        return self._outcome


class BlockingStream(TensorStream):
    """One stream that any number of threads share.

    Every pop from ``_pending`` is followed by ``_tensors.forget``.
    """

    def __init__(self, channel: grpc.Channel, limit: int, authorization: str = "") -> None:
        self._requests = BlockingOutbox()
        super().__init__(limit, self._requests.put)
        self._numbers = itertools.count(1)
        self._pending = PendingCalls()
        self._is_closed = False
        self._opened = threading.Event()
        self._failure: LaneClosedError | None = None
        method: Any = channel.stream_stream(CALL_STREAM)
        self._call: Any = method(
            iter(self._requests), metadata=(*self._tensors.metadata, *shown(authorization))
        )
        try:
            threading.Thread(target=self._read, name="call-stream", daemon=True).start()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        channel: grpc.Channel,
        limit: int,
        patience: float = lane_messages.HANDSHAKE_TIMEOUT,
        authorization: str = "",
    ) -> BlockingStream:
        """Open a stream and wait ``patience`` seconds for the other side to accept it.

        Raises LaneClosedError, also if the other side does not support streams or no thread can be
        started to read, and NotAdmittedError if the other side refuses the ``authorization``.
        """
        try:
            stream = cls(channel, limit, authorization)
        except RuntimeError as error:  # no thread: the system's limit is reached
            raise LaneClosedError(f"cannot start a thread for a stream: {error}") from error
        if not stream._opened.wait(patience):
            stream.close()
            raise LaneClosedError("the other side did not accept a stream of calls in time")
        if stream._failure is not None:
            raise stream._failure
        return stream

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended, so that calls on it fail."""
        return self._is_closed

    is_connected = True
    """Whether the lane ends with its connection."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""
        return len(self._pending.calls)

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        tensors: CallTensors | None = None,
        watch: Watch | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call under a new id and wait for the reply, which may be an error.

        ``tensors`` holds the large tensors of the request, and receives those of the reply;
        ``watch`` is as for ``BlockingLane.call``.

        Raises MessageTooLargeError, which names the call ``what``; TimeoutError and
        LaneClosedError. Any exception during the wait, such as Ctrl-C, cancels the call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiter = _Waiter()
        number = self.begin(request, None, what, waiter.note, tensors)
        reply: execution_pb2.CallReply = self._wait_for(number, waiter, deadline, watch)
        return reply

    def exchange(
        self,
        encode: Callable[[int], bytes],
        deadline: float | None,
        watch: Watch | None,
        decode: Decode,
    ) -> Any:
        """Make a call as ``BlockingLane.exchange`` does."""
        waiter = _Waiter()
        number = next(self._numbers)
        payload = encode(number)
        self._pending.add(number, waiter.note, None, decode)
        self._requests.put(payload)
        try:
            result = self._wait_for(number, waiter, deadline, watch)
        except LaneClosedError as error:
            error.call = number
            raise
        if type(result) is not tuple:
            self._tensors.forget(number)
        return result

    def _wait_for(
        self, number: int, waiter: _Waiter, deadline: float | None, watch: Watch | None
    ) -> Any:
        try:
            if watch is None:
                result = waiter.wait(deadline)
            else:
                result = wait_unless_given_up(watch, waiter.wait, deadline)
        except BaseException:
            self.cancel(number)
            raise
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
        """Begin a call and return its id; see ``BlockingLane.begin`` and ``call``."""
        number = request.id = next(self._numbers)
        message = self._tensors.begin(request, what, tensors)
        try:
            self._add(number, on_done, timeout)
        except BaseException:
            self._tensors.forget(number)
            raise
        self._requests.put(message)
        return number

    def _add(
        self, number: int, on_done: OnDone, timeout: float | None, decode: Decode | None = None
    ) -> None:
        def forget_and_tell(result: Any) -> None:
            self._tensors.forget(number)
            on_done(result)

        self._pending.add(number, forget_and_tell, timeout, decode)

    def begin_plain(
        self,
        encode: Callable[[int], bytes],
        timeout: float | None,
        on_done: OnDone,
        decode: Decode,
    ) -> int:
        """Begin a call as ``BlockingLane.begin_plain`` does."""
        number = next(self._numbers)
        payload = encode(number)
        self._add(number, on_done, timeout, decode)
        self._requests.put(payload)
        return number

    def flush(self) -> None:
        """Do nothing, because gRPC's thread sends at once."""

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""
        if self._pending.take(number) is None:
            return False
        self._tensors.forget(number)
        self._tensors.send_cancel(number)
        return True

    def close(self) -> None:
        """End the stream; calls in flight fail with LaneClosedError. Idempotent."""
        self._end("the stream is closed")
        self._call.cancel()

    def _read(self) -> None:
        why, code = "the other side ended the stream", None
        try:
            with contextlib.suppress(grpc.RpcError):
                self._call.initial_metadata()
                if self._call.is_active():
                    self._welcomed(tuple(self._call.initial_metadata() or ()))
                    self._opened.set()
            for payload in self._call:
                if not self._take_plain(payload):
                    self._take(payload)
        except grpc.RpcError as error:
            why, code = self._call.details() or str(error), self._call.code()
        except WireError as error:
            why = str(error)
            self._call.cancel()
        finally:
            self._end(why, code)
            self._tensors.end()

    def _take_plain(self, payload: bytes) -> bool:
        """Pass a reply to its call if that can decode the bytes; return whether it has."""
        found = read_id(payload)
        return found is not None and self._pending.take_plain(found[0], payload, found[1])

    def _take(self, payload: bytes) -> None:
        reply = execution_pb2.CallReply()
        parse_message(reply, payload)
        number = reply.id
        if reply.HasField("chunk"):
            self._take_chunk(number, reply.chunk)
            return
        reply = self._tensors.read_reply(reply)
        if (on_done := self._pending.take(number)) is not None:
            on_done(reply)

    def _take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        if number in self._pending.calls:
            self._tensors.expect_inline(number)
        try:
            self._tensors.take_chunk(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:  # no memory for the tensor
            if (on_done := self._pending.take(number)) is not None:
                self._tensors.send_cancel(number)
                on_done(error)

    def _end(self, why: str, code: grpc.StatusCode | None = None) -> None:
        self._is_closed = True
        if not self._opened.is_set():
            self._failure = closed_error(code, why)
            self._opened.set()
        self._requests.end()
        self._pending.end(closed_error(code, why))
