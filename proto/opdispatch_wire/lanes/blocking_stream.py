"""The calling side of a gRPC stream of calls, for threads that wait.

gRPC sends in a thread of its own and hands what comes to one thread of ours, which hands it on:
every call costs the time of these hand-overs, but any number of calls share them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import Any

import grpc

from opdispatch.errors import OpdispatchError
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.blocking_outbox import BlockingOutbox
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.patient_wait import Watch, wait_unless_given_up
from opdispatch_wire.lanes.pending_calls import OnDone, PendingCalls
from opdispatch_wire.lanes.stream_tensors import CALL_STREAM, TensorStream, closed_error, shown
from opdispatch_wire.v1 import execution_pb2


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
        method: Any = channel.stream_stream(
            CALL_STREAM, response_deserializer=execution_pb2.CallReply.FromString
        )
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
        """Open a stream and wait ``patience`` seconds until the other side has done so, too.

        Raises LaneClosedError, also if the other side does not know streams, or there is no
        thread that could read; NotAdmittedError if that does not take the ``authorization``.
        """
        try:
            stream = cls(channel, limit, authorization)
        except RuntimeError as error:  # of threading: the system's limit is reached
            raise LaneClosedError(f"there is no thread for a stream of calls: {error}") from error
        if not stream._opened.wait(patience):
            stream.close()
            raise LaneClosedError("the other side does not open a stream of calls")
        if stream._failure is not None:
            raise stream._failure
        return stream

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""
        return self._is_closed

    is_connected = True
    """Whether it ends with the connection that it has."""

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""
        return len(self._pending.calls)

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        tensors: CallTensors | None = None,
        watch: Watch | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call, with an id of its own, and wait for the reply, which may be an error.

        Large tensors of both are in ``tensors``; ``watch`` is as in ``BlockingLane.call``.

        Raises MessageTooLargeError, which says ``what`` is; TimeoutError and LaneClosedError.
        Whatever ends the wait, such as Ctrl-C, cancels the call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        outcome: list[execution_pb2.CallReply | Exception] = []
        wake = threading.Lock()
        wake.acquire()

        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            outcome.append(result)
            wake.release()

        def wait(until: float | None) -> execution_pb2.CallReply | Exception:
            left = -1.0 if until is None else max(until - time.monotonic(), 0.0)
            if not wake.acquire(timeout=left):
                raise TimeoutError
            return outcome[0]

        number = self.begin(request, None, what, on_done, tensors)
        try:
            if watch is None:
                result = wait(deadline)
            else:
                result = wait_unless_given_up(watch, wait, deadline)
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

        def forget_and_tell(result: execution_pb2.CallReply | Exception) -> None:
            self._tensors.forget(number)
            on_done(result)

        try:
            self._pending.add(number, forget_and_tell, timeout)
        except BaseException:
            self._tensors.forget(number)
            raise
        self._requests.put(message)
        return number

    def flush(self) -> None:
        """Do nothing: gRPC's thread sends at once."""

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""
        if self._pending.take(number) is None:
            return False
        self._tensors.forget(number)
        self._tensors.send_cancel(number)
        return True

    def close(self) -> None:
        """End the stream; calls under way end with LaneClosedError. Idempotent."""
        self._end("the stream is closed")
        self._call.cancel()

    def _read(self) -> None:
        why, code = "the other side has ended the stream", None
        try:
            with contextlib.suppress(grpc.RpcError):
                self._call.initial_metadata()
                if self._call.is_active():
                    self._welcomed(tuple(self._call.initial_metadata() or ()))
                    self._opened.set()
            for reply in self._call:
                if reply.HasField("chunk"):
                    self._take_chunk(reply.id, reply.chunk)
                else:
                    self._take(reply)
        except grpc.RpcError as error:
            why, code = self._call.details() or str(error), self._call.code()
        except WireError as error:
            why = str(error)
            self._call.cancel()
        finally:
            self._end(why, code)
            self._tensors.end()

    def _take(self, reply: execution_pb2.CallReply) -> None:
        number = reply.id
        reply = self._tensors.read_reply(reply)
        if (on_done := self._pending.take(number)) is not None:
            on_done(reply)

    def _take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        try:
            self._tensors.take_chunk(number, chunk)
        except WireError:
            raise
        except OpdispatchError as error:  # there is no memory for it
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
