"""Nested calls from an interpreter to operators whose kernels are in other interpreters."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from opdispatch import DispatchKeySet, KernelFunction, OperatorHandle, TraceLine
from opdispatch.errors import OpdispatchError
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.local_state.trace_line import TraceSink
from opdispatch_server.call_context import MAX_DEPTH, RUNNING_CALL, CallContext
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.internal_message_limit import internal_message_limit
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.reading_turn import hand_over_turn
from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.calls import call_request, returns_of_reply
from opdispatch_wire.channel import channel_options
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.lanes import lane_messages, lane_socket
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, check_message_size
from opdispatch_wire.profiles import CallSpan
from opdispatch_wire.status import error_from_rpc, late_answer_error, lost_connection_error
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc

LOG = logging.getLogger("opdispatch.lane")


@dataclass(frozen=True, slots=True)
class RemoteTraceLine(TraceLine):
    """A line of the trace from another process."""

    interpreter: str = ""


class CallTrace:
    """The trace of one call in this interpreter, with that of its nested calls in others."""

    def __init__(self) -> None:
        self.lines: list[TraceLine] = []

    def sink(self) -> TraceSink:
        """Return the sink for the lines of calls that a kernel makes."""
        return TraceSink(self.take, depth=1)

    def take(self, line: TraceLine) -> None:
        """Add a line."""
        self.lines.append(line)

    def served_by(self, interpreter: str) -> None:
        """Record that the call of the last line ran in another interpreter."""
        line = self.lines[-1]
        self.lines[-1] = RemoteTraceLine(
            line.depth, line.kind, line.operator, line.key, line.kernel, line.reason, interpreter
        )


class DaemonLane:
    """The connection for nested calls, which block. Any thread may make them.

    A local lane that broke is reopened by the next call; the calls in flight on it fail, since they
    may have run. While one call reopens it, others go over gRPC, and if reopening fails, so do all
    later ones; but if it fails only because that call ran out of time, the next one tries again. A
    call that finds the lane broken just before it is sent also tries again.

    ``_is_in_doubt`` is set after a call on ``_lane`` has failed; the next call checks the lane, or
    opens it if there is none. ``_opening`` is held by the one thread that may replace ``_lane``. It
    takes ``_lane`` away, clears ``_is_in_doubt``, and only then checks, in this order: no call
    begins on a lane that is known to be broken, and one that breaks meanwhile is checked again.
    ``close`` sets ``_is_closed`` before it takes ``_lane``, and a lane is stored before
    ``_is_closed`` is read: so one of the two closes it.
    """

    def __init__(
        self, address: str, max_message_bytes: int, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self._address = address
        self._limit = max_message_bytes
        self._internal_limit = internal_message_limit(max_message_bytes)
        self._path = ""
        self._lane: BlockingLane | None = None
        self._opening = threading.Lock()
        self._is_in_doubt = False
        self._is_closed = False
        options = channel_options(self._internal_limit, address=address)
        self._channel = credentials.channel(address, options)
        self._execution = execution_pb2_grpc.ExecutionServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def kernel(self, place: int, documentation: str) -> KernelFunction:
        """Return a kernel that forwards the stack to the daemon, which finds the actual kernel."""
        return KernelFunction.from_boxed(_ForwardingKernel(self, documentation), is_elsewhere=True)

    def call(self, op: OperatorHandle, keys: DispatchKeySet, stack: Sequence[Any]) -> list[Any]:
        """Call ``op`` with exactly ``keys`` and return its results. Raises the errors of a call."""
        running = RUNNING_CALL.get()
        if running.depth >= MAX_DEPTH:
            raise RecursionError(
                f"{op.name} was called {running.depth} calls deep across interpreters"
            )
        sink = LOCAL_STATE.get().trace
        if sink is not None and not sink.takes_remote:
            sink = None
        args, kwargs = op.signature.split(stack)
        lane = self._working_lane(running.deadline) if self._is_in_doubt else self._lane
        encode = functools.partial(
            self._encode, op, keys, args, kwargs, sink is not None, running.traceparent
        )
        request, tensors = encode(lane)
        span = CallSpan.begin(op.name.name)
        if span is not None:
            span.ask(request)
        hand_over_turn()
        reply: execution_pb2.CallReply | None = None
        try:
            with running.nested() as context:
                try:
                    reply = self._send(request, context, lane, tensors)
                except LaneClosedError:  # certainly not sent: see ``_send``
                    request, tensors = encode(None)
                    if span is not None:
                        span.ask(request)
                    reply = self._send(request, context, None, None)
        finally:
            if span is not None:
                span.end(reply)
        if sink is not None:
            _emit_remote_lines(sink, reply)
        return returns_of_reply(reply, args, kwargs, tensors)

    def use_local_lane(self, path: str) -> None:
        """Route calls through the daemon's local lane, if it can be reached.

        Blocks until the daemon answers, at most for the time of a handshake; meanwhile calls go
        over gRPC.
        """
        with self._opening:
            self._path = path
            self._put(self._open(lane_messages.HANDSHAKE_TIMEOUT))

    def close(self) -> None:
        """Close the connection; calls in flight fail."""
        self._is_closed = True
        self._channel.close()
        if (lane := self._lane) is not None:
            lane.close()

    def _working_lane(self, deadline: float | None) -> BlockingLane | None:
        """Return the lane, reopened if it broke; None if the call has to go over gRPC.

        Waits at most until ``deadline``, by ``time.monotonic``.
        """
        hand_over_turn()  # the daemon may be slow to answer
        patience = lane_messages.patience_until(deadline)
        if not patience or not self._opening.acquire(blocking=False):
            return None
        try:
            lane, self._lane = self._lane, None
            self._is_in_doubt = False
            if (lane is None or lane.is_closed) and not self._is_closed:
                if lane is not None:
                    lane.close()
                lane = self._open(patience)
                # This call had too little time left to open it: the next one tries again.
                self._is_in_doubt = lane is None and not lane_messages.patience_until(deadline)
            self._put(lane)
            return lane
        finally:
            self._opening.release()

    def _put(self, lane: BlockingLane | None) -> None:
        """Route calls through this lane. The caller holds ``_opening``."""
        self._lane = lane
        if self._is_closed and lane is not None:
            lane.close()

    def _open(self, patience: float) -> BlockingLane | None:
        if self._path and lane_socket.is_socket(self._path):
            try:
                GUARD.own_peer(f"unix:{self._path}")
                return BlockingLane.connect(
                    self._path,
                    self._internal_limit,
                    call_limit=MAX_MESSAGE_BYTES_HIGHEST,
                    patience=patience,
                )
            except (OSError, OpdispatchError) as error:
                LOG.info(
                    "kernels call the daemon over gRPC: %s", error, extra=fields(Event.LANE_SLOW)
                )
        return None

    def _encode(
        self,
        op: OperatorHandle,
        keys: DispatchKeySet,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        trace: bool,
        traceparent: str,
        lane: BlockingLane | None,
    ) -> tuple[execution_pb2.CallRequest, CallerTensors | None]:
        """Return the request for the lane, and its detached tensors.

        None if it goes over gRPC.
        """
        tensors = CallerTensors(lane.inline_bytes) if lane is not None else None
        request = call_request(
            str(op.name), args, kwargs, trace=trace, redispatch_keys=keys, memory=tensors
        )
        if traceparent:
            request.traceparent = traceparent
        check_message_size(request, self._limit, f"the call of {op.name}")
        return request, tensors

    def _send(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        lane: BlockingLane | None,
        tensors: CallTensors | None,
    ) -> execution_pb2.CallReply:
        """Send a call and return the reply.

        Raises LaneClosedError if the call was certainly not sent, and can go over gRPC.
        """
        if lane is None:
            try:
                reply: execution_pb2.CallReply = self._execution.Call(
                    request, timeout=context.timeout, metadata=context.metadata
                )
            except grpc.RpcError as error:
                raise error_from_rpc(error, address=self._address) from None
            return reply
        context.write_to(request)
        try:
            what = f"the call of {request.operator}"
            return lane.call(request, context.timeout, what, tensors=tensors)
        except BaseException as error:
            self._is_in_doubt = True
            if isinstance(error, TimeoutError):
                raise late_answer_error(self._address, request.operator) from None
            if isinstance(error, LaneClosedError) and (error.was_sent or self._is_closed):
                raise lost_connection_error(self._address, str(error)) from error
            raise


class _ForwardingKernel:
    def __init__(self, lane: DaemonLane, documentation: str) -> None:
        self._lane = lane
        self.__doc__ = documentation

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        stack[:] = self._lane.call(op, keys, stack)


def _emit_remote_lines(sink: TraceSink, reply: execution_pb2.CallReply) -> None:
    trace = getattr(sink.emit, "__self__", None)
    if isinstance(trace, CallTrace):
        trace.served_by(reply.interpreter)
    # The daemon's first line repeats one of this process's dispatcher.
    for line in reply.trace[1:]:
        depth = sink.depth - 1 + line.depth
        sink.emit(
            RemoteTraceLine(
                depth,
                line.kind,
                line.operator,
                line.key,
                line.kernel,
                line.reason,
                line.interpreter or reply.interpreter,
            )
        )
