"""The calls in flight of one connection, a gRPC stream or a local lane."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Generic

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.call_protocols import AbandonableCall, CallRunner, PlannedCall, Run
from opdispatch_server.serving.status_answers import forget_frames
from opdispatch_wire.chunks import CHUNK_BYTES, Buffer, CallTensors, chunk_bytes_for
from opdispatch_wire.detached_tensors import CALL_REPLY, attach, detach
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, check_size, serialize_message
from opdispatch_wire.received_call import ReceivedCall
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.lane")

CALLS_IN_FLIGHT = 1024
"""Calls in flight of one connection from which no more are read."""

# A shorter tensor stays in its reply, even if that becomes too long.
_LEAST_BYTES = 1024


class CallsInFlight(Generic[Run]):
    """Begins, answers, cancels and limits the calls of a connection. For the event loop only.

    ``send`` receives each CallReply, in pieces if it has large tensors; if the peer takes chunks,
    ``send_large`` receives replies with large tensors: the id, the tensors, the reply. ``set_full``
    is called when nothing more should be read, and when there is room again.
    """

    def __init__(
        self,
        runner: CallRunner[Run],
        send: Callable[[FramePayload], None],
        set_full: Callable[[bool], None],
        reply_limit: int = MAX_MESSAGE_BYTES_HIGHEST,
        send_large: Callable[[int, Sequence[Buffer], bytes], None] | None = None,
        at_once: int = CALLS_IN_FLIGHT,
    ) -> None:
        self._runner = runner
        self._at_once = at_once
        self._send = send
        self._send_large = send_large
        self._set_full = set_full
        self.reply_limit = reply_limit
        """The longest reply that the peer accepts, in bytes; a longer one becomes an error."""
        self.reply_limit_with_tensors = 0
        """The longest reply including large tensors, if that is more."""
        self._calls: dict[int, asyncio.Task[None] | AbandonableCall] = {}
        # Callbacks for when calls without a task end, except planned ones, which hold no data.
        self._quick_ends: dict[int, Callable[[], None]] = {}
        # Set to an event only while a task waits for it.
        self._changed: asyncio.Event | None = None
        self._is_full = False

    def __contains__(self, number: int) -> bool:
        return number in self._calls

    def take_received(
        self,
        received: ReceivedCall,
        on_end: Callable[[], None] = lambda: None,
        message: bytes = b"",
    ) -> None:
        """Begin a received call; answer it at once if it was refused on arrival."""
        if received.refusal is None:
            self.take(received.request, on_end, received.arguments, message)
        else:
            self.refuse(received.request.id, received.refusal)
            on_end()

    def refuse(self, number: int, refusal: OpdispatchError) -> None:
        """Answer a call that was refused on arrival. Raises WireError if its id is in flight."""
        if number in self._calls:
            raise _still_under_way(number)
        reply = execution_pb2.CallReply(error=status_from_error(refusal))
        self._reply(number, reply, CallTensors())

    def take(
        self,
        request: execution_pb2.CallRequest,
        on_end: Callable[[], None] = lambda: None,
        arguments: Sequence[Buffer] = (),
        message: bytes = b"",
    ) -> None:
        """Begin a call, or cancel one. Raises WireError if one with its id is in flight.

        ``on_end`` is called when the daemon no longer holds data of the call. ``arguments`` are the
        large tensors that were detached from it; ``message`` is as in ``CallContext``.
        """
        number = request.id
        if request.cancel:
            self.cancel(number)
            on_end()  # a cancellation has no data to hold
            return
        if number in self._calls:
            raise _still_under_way(number)
        tensors = CallTensors(results_of_any_size=self._takes_any_size)
        tensors.arguments = arguments
        context = CallContext.of_request(request, tensors)
        context.message = message

        def end(result: execution_pb2.CallReply | BaseException | Run) -> None:
            if isinstance(result, BaseException):
                result = _failure(request, result)
            elif not isinstance(result, execution_pb2.CallReply):
                self._start(number, request, context, tensors, on_end, result)
                return
            self._reply(number, result, tensors)
            self._forget(number)
            on_end()

        quick = None if arguments else self._runner.begin(request, context, end)
        if quick is None:
            self._start(number, request, context, tensors, on_end)
        else:
            self._calls[number] = quick
            self._quick_ends[number] = on_end
        self._note_begun()

    def take_planned(self, call: PlannedCall[Run]) -> bool:
        """Begin a planned call; return False if it is to be treated like others.

        Raises WireError if one with its id is in flight.
        """
        if call.number in self._calls:
            raise _still_under_way(call.number)
        tensors = CallTensors(results_of_any_size=self._takes_any_size)
        end = functools.partial(self._end_planned, call, tensors)
        if not call.begin(end, self.reply_limit, tensors):
            return False
        self._calls[call.number] = call
        self._note_begun()
        return True

    def _end_planned(
        self,
        call: PlannedCall[Run],
        tensors: CallTensors,
        result: bytes | execution_pb2.CallReply | BaseException | Run,
    ) -> None:
        number = call.number
        if isinstance(result, bytes):
            self._send(result)
            self._forget(number)
            return
        if isinstance(result, BaseException):
            result = _failure(call.request, result)
        elif not isinstance(result, execution_pb2.CallReply):
            context = CallContext(call.deadline, tensors=tensors)
            self._start(number, call.request, context, tensors, _do_nothing, result)
            return
        self._reply(number, result, tensors)
        self._forget(number)

    def _note_begun(self) -> None:
        if len(self._calls) >= self._at_once and not self._is_full:
            self._is_full = True
            self._set_full(True)

    @property
    def _takes_any_size(self) -> bool:
        """Whether the peer accepts large tensors outside replies."""
        return self._send_large is not None or bool(self.reply_limit_with_tensors)

    def cancel(self, number: int) -> None:
        """Cancel the call with that id; do nothing if it has ended."""
        call = self._calls.get(number)
        if isinstance(call, asyncio.Task):
            call.cancel()
        elif call is not None:
            call.abandon()
            on_end = self._quick_ends.get(number, _do_nothing)
            self._forget(number)
            on_end()

    def close(self) -> None:
        """Cancel all calls, and call no callback afterwards. Idempotent."""
        for number in list(self._calls):
            self.cancel(number)
        # Break the reference cycle with the callbacks' owners, so that all is freed at once.
        self._send = self._set_full = ignore_event
        self._send_large = None

    async def wait_until_answered(self) -> None:
        """Wait until no call is in flight."""
        while self._calls:
            self._changed = self._changed or asyncio.Event()
            await self._changed.wait()

    def _start(
        self,
        number: int,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CallTensors,
        on_end: Callable[[], None],
        broken: Run | None = None,
    ) -> None:
        """Start a task for the call whose id is ``number``."""
        task = asyncio.create_task(self._answer(number, request, context, tensors, broken))
        self._calls[number] = task
        self._quick_ends.pop(number, None)

        def end(task: asyncio.Task[None]) -> None:
            if self._calls.get(number) is task:
                self._forget(number)
            on_end()

        # Called even if the task is cancelled before its first step.
        task.add_done_callback(end)

    async def _answer(
        self,
        number: int,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CallTensors,
        broken: Run | None,
    ) -> None:
        try:
            reply = await self._call(request, context, broken)
        finally:
            tensors.arguments = ()  # released even if a kernel runs on unawaited
        if reply is not None:
            self._reply(number, reply, tensors)
            # In the same step as the reply, before the caller can reuse the id.
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        self._quick_ends.pop(number, None)
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self._is_full and len(self._calls) < self._at_once // 2:
            self._is_full = False
            self._set_full(False)

    async def _call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: Run | None,
    ) -> execution_pb2.CallReply | None:
        """Return the reply; None if the call was cancelled."""
        try:
            return await self._runner.call(request, context, broken)
        except asyncio.CancelledError:
            return None
        except Exception as error:
            return _failure(request, error)

    def _reply(self, number: int, reply: execution_pb2.CallReply, tensors: CallTensors) -> None:
        reply.id = number
        what, results = "the result of the call", tensors.results_of(reply)
        try:
            if self._send_large is None:
                self._send(self._with_results(reply, results, what))
                return
            payload = serialize_message(reply, MAX_MESSAGE_BYTES_HIGHEST, what)
            payload, results = self._detach_more(payload, results)
            check_size(len(payload), self.reply_limit, what)
            if results:
                self._send_large(number, results, payload)
            else:
                self._send(payload)
        except MessageTooLargeError as error:
            error_reply = execution_pb2.CallReply(id=number, error=status_from_error(error))
            self._send(error_reply.SerializeToString())

    def _with_results(
        self, reply: execution_pb2.CallReply, results: Sequence[Buffer], what: str
    ) -> FramePayload:
        """Return the reply with its large tensors in place."""
        payload = serialize_message(reply, MAX_MESSAGE_BYTES_HIGHEST, what)
        if self.reply_limit_with_tensors:
            payload, results = self._detach_more(payload, results)
        check_size(len(payload), self.reply_limit, what)
        if not results:
            return payload
        pieces = attach(payload, CALL_REPLY, results, aligned=True)
        check_size(len(pieces), max(self.reply_limit_with_tensors, self.reply_limit), what)
        return pieces

    def _detach_more(
        self, payload: bytes, results: Sequence[Buffer]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """Detach further large parts of the reply, which would otherwise be too long."""
        for threshold in (chunk_bytes_for(self.reply_limit), _LEAST_BYTES):
            if len(payload) > min(CHUNK_BYTES, self.reply_limit):
                payload, more = detach(payload, CALL_REPLY, threshold, first=len(results))
                results = [*results, *more]
            if len(payload) <= self.reply_limit:
                break
        return payload, results


def _failure(request: execution_pb2.CallRequest, error: BaseException) -> execution_pb2.CallReply:
    """Return the reply of a call that has failed; log unexpected errors."""
    if not isinstance(error, OpdispatchError):
        LOG.error(
            "the call of %s failed",
            request.operator,
            exc_info=error,
            extra=fields(Event.INTERNAL_ERROR, operator=request.operator, call=request.id),
        )
    reply = execution_pb2.CallReply(error=status_from_error(error))
    forget_frames(error)
    return reply


def ignore_event(_: object) -> None:
    """No-op callback used after close."""


def _still_under_way(number: int) -> WireError:
    return WireError(f"$.id is {number}, and the call of that id is still under way")


def _do_nothing() -> None:
    """No-op callback for the end of a call."""
