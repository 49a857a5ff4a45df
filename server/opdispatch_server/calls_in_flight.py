"""The calls of one connection that are under way in the daemon, whatever they came over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.call_router import CallRouter
from opdispatch_server.kernel_runs import KernelRun
from opdispatch_server.quick_calls import QuickCall
from opdispatch_server.status_answers import status_of_rpc_error
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, serialize_message
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.lane")

CALLS_IN_FLIGHT = 1024
"""How many calls of one connection are under way before no more are read."""


class CallsInFlight:
    """Begins, answers, cancels and bounds them. Belongs to the event loop.

    ``send`` gets the bytes of each CallReply. ``set_full`` is told when nothing more should be
    read, and when there is room again.
    """

    def __init__(
        self,
        router: CallRouter,
        send: Callable[[bytes], None],
        set_full: Callable[[bool], None],
        reply_limit: int = MAX_MESSAGE_BYTES_HIGHEST,
    ) -> None:
        self._router = router
        self._send = send
        self._set_full = set_full
        self.reply_limit = reply_limit
        """The longest reply that the peer takes, in bytes; a longer one becomes an error."""
        self._calls: dict[int, asyncio.Task[None] | QuickCall] = {}
        # What to call when those end that have no task.
        self._quick_ends: dict[int, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._is_full = False

    def take(
        self, request: execution_pb2.CallRequest, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """Begins a call, or cancels one. Raises WireError if one of that id is under way.

        ``on_end`` is called when the daemon holds nothing of it any more.
        """
        number = request.id
        if request.cancel:
            self.cancel(number)
            return
        if number in self._calls:
            raise WireError(f"$.id is {number}, and the call of that id is still under way")
        context = CallContext.of_request(request)

        def end(result: execution_pb2.CallReply | OpdispatchError | KernelRun) -> None:
            if isinstance(result, KernelRun):
                self._start(number, request, context, on_end, result)
                return
            if isinstance(result, OpdispatchError):
                result = execution_pb2.CallReply(error=status_from_error(result))
            self._send(self._serialize(number, result))
            self._forget(number)
            on_end()

        quick = self._router.begin(request, context, end)
        if quick is None:
            self._start(number, request, context, on_end)
        else:
            self._calls[number] = quick
            self._quick_ends[number] = on_end
        if len(self._calls) >= CALLS_IN_FLIGHT and not self._is_full:
            self._is_full = True
            self._set_full(True)

    def cancel(self, number: int) -> None:
        """Nobody waits for that call any more; it may have ended already."""
        call = self._calls.get(number)
        if isinstance(call, QuickCall):
            call.abandon()
            on_end = self._quick_ends[number]
            self._forget(number)
            on_end()
        elif call is not None:
            call.cancel()

    def cancel_all(self) -> None:
        """Nobody waits for any of them any more."""
        for number in list(self._calls):
            self.cancel(number)

    async def wait_until_answered(self) -> None:
        """Returns when none is under way."""
        while self._calls:
            self._changed.clear()
            await self._changed.wait()

    def _start(
        self,
        number: int,
        request: execution_pb2.CallRequest,
        context: CallContext,
        on_end: Callable[[], None],
        broken: KernelRun | None = None,
    ) -> None:
        """Has a task see to the call, which its caller knows by that number."""
        task = asyncio.create_task(self._answer(number, request, context, broken))
        self._calls[number] = task
        self._quick_ends.pop(number, None)

        def end(task: asyncio.Task[None]) -> None:
            if self._calls.get(number) is task:
                self._forget(number)
            on_end()

        # Also of one that is cancelled before its first step.
        task.add_done_callback(end)

    async def _answer(
        self,
        number: int,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: KernelRun | None,
    ) -> None:
        reply = await self._call(request, context, broken)
        if reply is not None:
            self._send(self._serialize(number, reply))
            # Before the caller can use that id again.
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        self._quick_ends.pop(number, None)
        self._changed.set()
        if self._is_full and len(self._calls) < CALLS_IN_FLIGHT // 2:
            self._is_full = False
            self._set_full(False)

    async def _call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: KernelRun | None,
    ) -> execution_pb2.CallReply | None:
        """The reply; None if nobody waits for it any more."""
        try:
            return await self._router.call(request, context, broken)
        except asyncio.CancelledError:
            return None
        except grpc.aio.AioRpcError as error:
            return execution_pb2.CallReply(error=status_of_rpc_error(error))
        except Exception as error:
            if not isinstance(error, OpdispatchError):
                LOG.error("the call of %s failed", request.operator, exc_info=error)
            return execution_pb2.CallReply(error=status_from_error(error))

    def _serialize(self, number: int, reply: execution_pb2.CallReply) -> bytes:
        reply.id = number
        try:
            return serialize_message(reply, self.reply_limit, "the result of the call")
        except MessageTooLargeError as error:
            error_reply = execution_pb2.CallReply(id=number, error=status_from_error(error))
            return error_reply.SerializeToString()
