"""The calls of one gRPC stream to an interpreter: kernels run in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.serving.running_call import OnReply
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.kernel_threads import KernelPool, KernelThreads
from opdispatch_server.worker.libraries.turns import LibraryTurns, no_thread_error
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2


class KernelCalls:
    """A ``CallRunner`` that runs kernels here, as the ``rules`` let it. Belongs to the event loop.

    ``number`` is the stream's, for the rules.
    """

    def __init__(
        self, execution: KernelExecution, rules: CallRules, threads: KernelThreads, number: int
    ) -> None:
        self.execution = execution
        self.rules = rules
        self.threads = threads
        self._number = number

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[None]
    ) -> StreamedCall | None:
        """Begin a call, or let it wait for its turn; no task waits for it.

        None: it is refused, and ``call`` says why.
        """
        try:
            return self._begin(request, context, on_reply)
        except OpdispatchError:
            return None

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: None = None,
    ) -> execution_pb2.CallReply:
        """Run a kernel; one whose call is cancelled before it has a thread is dropped.

        Raises as ``KernelExecution.run`` and ``CallRules.admit``; QueueFullError and
        MessageTooLargeError.
        """
        reply: asyncio.Future[execution_pb2.CallReply] = asyncio.Future()

        def on_reply(result: execution_pb2.CallReply | BaseException | None) -> None:
            if isinstance(result, execution_pb2.CallReply):
                reply.set_result(result)
            elif result is not None:
                reply.set_exception(result)

        call = self._begin(request, context, on_reply)
        try:
            return await reply
        finally:
            call.abandon()

    def _begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[None]
    ) -> StreamedCall:
        admitted = self.rules.admit(self._number, request)
        tensors = context.tensors or CallTensors()
        call = StreamedCall(self, request, admitted, tensors, on_reply)
        try:
            if (turns := self._turns_of(request, admitted)) is None:
                call.start_without_turn()
            elif turns.begin(call, admitted.limit, self.rules.room):
                turns.start(call)
        except OpdispatchError:
            self.rules.end(admitted)
            raise
        return call

    def _turns_of(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> LibraryTurns[StreamedCall] | None:
        """Return the turns that the call takes part in.

        None for those made by kernels, which take none.
        """
        if not context.lane or not request.HasField("kernel"):
            return None
        return self.execution.turns_of(request.kernel.load_id)


class StreamedCall:
    """It waits for its turn in its library, and then for a thread, which runs it.

    It is dropped if it is abandoned when its turn comes. ``on_reply`` is called in the event loop,
    where the call was made, unless it is abandoned by then; ``run`` belongs to the thread.
    ``_claim`` is taken once, by the thread that runs it, or by who found none: its pool has the
    call in its queue then nevertheless.
    """

    def __init__(
        self,
        source: KernelCalls,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CallTensors,
        on_reply: OnReply[None],
    ) -> None:
        self.source = source
        self.operator = request.operator
        self.context = context
        self.waits_since = 0
        self._request = request
        self._tensors = tensors
        self._loop = asyncio.get_running_loop()
        self._on_reply = on_reply
        self._is_abandoned = False
        self._claim = threading.Lock()
        self.size = request.ByteSize() + sum(len(argument) for argument in tensors.arguments)

    def start(self, turns: LibraryTurns[StreamedCall]) -> None:
        """Start a thread that runs it, and the calls that wait for it to end: its turn has come.

        Raises RuntimeError if there is no thread for it.
        """
        self._submit(self.source.threads.with_turn, self.work_off, turns)

    def start_without_turn(self) -> None:
        """Start a thread that runs it without a turn: a kernel has made the call.

        Raises RefusedError.
        """
        try:
            self._submit(self.source.threads.at_depth(self.context.depth), self.run)
        except RuntimeError as error:
            raise no_thread_error(self.operator, error) from error

    def abandon(self) -> None:
        """Discard the reply when it comes. Idempotent."""
        self._is_abandoned = True

    def refuse(self, error: OpdispatchError) -> None:
        """Reply with ``error``: it never starts."""
        self.source.rules.end(self.context)
        self._answer(None, error)

    def _submit(self, pool: KernelPool, work: Callable[..., None], *arguments: object) -> None:
        try:
            pool.submit(work, *arguments)
        except RuntimeError:
            if self._claim.acquire(blocking=False):
                raise

    def work_off(self, turns: LibraryTurns[StreamedCall]) -> None:
        """Run it, and those that wait for it to end; in a thread."""
        if not self._claim.acquire(blocking=False):
            return
        following: StreamedCall | None = self
        while following is not None:
            began = time.monotonic()
            following._run_claimed()
            turns.note(time.monotonic() - began)
            following = turns.end()
            if following is not None and not isinstance(following, StreamedCall):
                turns.start(following)  # one of a local lane
                return

    def run(self) -> None:
        """Run the kernel, unless it is not awaited any more."""
        if self._claim.acquire(blocking=False):
            self._run_claimed()

    def _run_claimed(self) -> None:
        rules = self.source.rules
        reply: execution_pb2.CallReply | None = None
        failure: BaseException | None = None
        try:
            if not self._is_abandoned:
                rules.begin(self.context)
                if self.waits_since:
                    self.context.queued += time.monotonic_ns() - self.waits_since
                reply = GUARD.run(self._run_kernel)
        except BaseException as error:  # a call is always answered
            failure = error
        finally:
            rules.end(self.context)
        self._answer(reply, failure)

    def _answer(self, reply: execution_pb2.CallReply | None, failure: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
            self._loop.call_soon_threadsafe(self._settle, reply, failure)

    def _run_kernel(self) -> execution_pb2.CallReply:
        beside, execution = self._tensors, self.source.execution
        is_limited = not self._request.chunks_reply
        tensors = CalleeTensors([*beside.arguments], is_limited=is_limited)
        beside.arguments = ()  # each is freed when the kernel drops it
        reply = execution.run(self._request, self.context, tensors)
        reply.has_waited = self.waits_since > 0
        execution.check_size(reply, tensors)
        beside.results = tensors.results
        return reply

    def _settle(self, reply: execution_pb2.CallReply | None, failure: BaseException | None) -> None:
        if self._is_abandoned:
            return
        self._is_abandoned = True  # its caller hears of it once
        if reply is not None:
            self._on_reply(reply)
        elif failure is not None:
            self._on_reply(failure)
