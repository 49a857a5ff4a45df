"""Calls over one gRPC stream to an interpreter, whose kernels run in threads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.direct_run import DirectRun
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.call_protocols import OnPlannedReply, OnReply
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.kernel_threads import KernelThreads
from opdispatch_server.worker.incoming.lane_replies import failure, failure_of_run
from opdispatch_server.worker.incoming.planned_run import begin_planned, plan_like, run_planned
from opdispatch_server.worker.libraries.turns import LibraryTurns, no_thread_error
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.planned_requests import Received
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.kernels")


class StreamCalls:
    """A ``CallRunner`` that runs kernels in this process, as far as ``rules`` permit.

    ``rules`` know the stream by ``number``. For use in the event loop only.
    """

    def __init__(
        self, execution: KernelExecution, rules: CallRules, threads: KernelThreads, number: int
    ) -> None:
        self.execution = execution
        self.rules = rules
        self.threads = threads
        self.number = number
        self.loop = asyncio.get_running_loop()

    def find_planned(self, payload: bytes) -> PlannedStreamedCall | None:
        """Return the call in a message if it follows a plan; else None."""
        plans = self.rules.plans
        found = None if plans is None else plans.find(payload)
        if found is None or found[0].layout.shared:  # no memory is shared here
            return None
        return PlannedStreamedCall(self, *found, payload)

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[None]
    ) -> StreamedCall | None:
        """Begin a call, or queue it for its turn, without a task that waits for it.

        Return None if it is refused; ``call`` then raises the reason.
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
        """Run a kernel and return its reply. A call that is cancelled before it starts never runs.

        Raises the errors of ``KernelExecution.run`` and ``CallRules.admit``, QueueFullError and
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
        admitted = self.rules.admit(self.number, request)
        tensors = context.tensors or CallTensors()
        call = StreamedCall(self, request, admitted, tensors, on_reply, context.message)
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
        """Return the turns of the call's library; None for nested calls, which take no turn."""
        if not context.lane or not request.HasField("kernel"):
            return None
        return self.execution.turns_of(request.kernel.load_id)


class _ThreadedCall:
    """A call that a thread runs, unless it is abandoned before it starts."""

    source: StreamCalls
    _is_abandoned = False

    def abandon(self) -> None:
        """Discard the reply when it comes. Idempotent."""
        self._is_abandoned = True

    def _tell(self, on_reply: Callable[[Any], None], result: Any) -> None:
        """Call ``on_reply`` in the event loop, unless the call is abandoned before."""
        try:  # noqa: SIM105 - three functions fewer than ``suppress``
            self.source.loop.call_soon_threadsafe(self._settle, on_reply, result)
        except RuntimeError:  # the loop is closed, so nothing waits
            pass

    def _settle(self, on_reply: Callable[[Any], None], result: Any) -> None:
        if not self._is_abandoned:
            self._is_abandoned = True  # ``on_reply`` is called only once
            on_reply(result)


class StreamedCall(_ThreadedCall):
    """A call that waits for its turn in its library, and then runs in a thread.

    ``on_reply`` is called in the event loop in which the call was made.
    """

    def __init__(
        self,
        source: StreamCalls,
        request: execution_pb2.CallRequest,
        context: CallContext,
        tensors: CallTensors,
        on_reply: OnReply[None],
        message: bytes,
    ) -> None:
        self.source = source
        self.operator = request.operator
        self.context = context
        self.waits_since = 0
        self._request = request
        self._tensors = tensors
        self._on_reply = on_reply
        self._message = message
        self.size = request.ByteSize() + sum(len(argument) for argument in tensors.arguments)

    def start(self, turns: LibraryTurns[StreamedCall]) -> None:
        """Run the call, and those that wait for it to end, in a thread: its turn has come.

        Raises RuntimeError if no thread can be started.
        """
        self.source.threads.with_turn.submit(_work_off, self, turns)

    def start_without_turn(self) -> None:
        """Run a nested call, which takes no turn, in a thread.

        Raises RefusedError if no thread can be started.
        """
        try:
            self.source.threads.at_depth(self.context.depth).submit(self.run)
        except RuntimeError as error:
            raise no_thread_error(self.operator, error) from error

    def refuse(self, error: OpdispatchError) -> None:
        """Reply with ``error``; the call will never start."""
        self.source.rules.end(self.context)
        self._tell(self._on_reply, error)

    def run(self) -> None:
        """Run the kernel and reply, unless the call was abandoned."""
        rules = self.source.rules
        result: execution_pb2.CallReply | BaseException | None = None
        try:
            if not self._is_abandoned:
                rules.begin(self.context)
                if self.waits_since:
                    self.context.queued += time.monotonic_ns() - self.waits_since
                result = GUARD.run(self._run_kernel)
        except BaseException as error:  # a call is always answered
            result = error
        finally:
            rules.end(self.context)
        if result is not None:
            self._tell(self._on_reply, result)
            if self._message:
                plan_like(self.source.execution, rules, self._message, self._request)

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


class PlannedStreamedCall(_ThreadedCall):
    """A planned call. If its turn does not come at once, it takes the general path."""

    def __init__(
        self, source: StreamCalls, plan: KernelPlan, received: Received, payload: bytes
    ) -> None:
        self.source = source
        self.number = received[0]
        """The id that the caller has given the call."""
        self._plan = plan
        self._received = received
        self._payload = payload

    deadline = None
    """None: a planned call is never begun again, so its deadline is not needed outside."""

    @property
    def request(self) -> execution_pb2.CallRequest:
        """The request, parsed for the general path."""
        return execution_pb2.CallRequest.FromString(self._payload)

    def begin(self, on_reply: OnPlannedReply[None], limit: int, tensors: CallTensors) -> bool:
        """Begin the call: see ``PlannedCall.begin``."""
        source, plan = self.source, self._plan
        run = begin_planned(source.execution, source.rules, source.number, plan, self._received)
        if run is None:
            return False
        try:
            source.threads.with_turn.submit(self._work_off, run, on_reply, limit, tensors)
        except RuntimeError:  # no thread: the general path reports it
            source.rules.end_run(run)
            if (following := plan.library.turns.end()) is not None:
                plan.library.turns.start(following)
            return False
        return True

    def _work_off(
        self, run: DirectRun, on_reply: OnPlannedReply[None], limit: int, beside: CallTensors
    ) -> None:
        """Run the call, and those that wait for it to end, in this thread."""
        turns, reply = self._plan.library.turns, None
        run.began = began = time.monotonic()
        if not self._is_abandoned:
            try:
                reply = self._run(run, limit, beside)
            except BaseException as error:  # such as MemoryError: the turn must end
                reply = failure_of_run(self.request, error)
        # Before the reply, so that the caller's next call finds the turn free.
        following = turns.end(time.monotonic() - began)
        self.source.rules.end_run(run)
        if reply is not None:
            self._tell(on_reply, reply)
        if following is not None:
            _work_off(following, turns)

    def _run(
        self, run: DirectRun, limit: int, beside: CallTensors
    ) -> bytes | execution_pb2.CallReply:
        execution = self.source.execution
        reply, tensors = run_planned(
            execution, self._plan, self._received, self._payload, run, limit
        )
        if isinstance(reply, bytes) or not isinstance(tensors, CalleeTensors):
            return reply
        try:
            execution.check_size(reply, tensors)
        except OpdispatchError as error:
            return failure(reply, error)
        beside.results = tensors.results
        return reply


def _work_off(call: Any, turns: LibraryTurns[StreamedCall]) -> None:
    """Run a call whose turn has come, and those that wait for it to end, in this thread."""
    while call is not None:
        if not isinstance(call, StreamedCall):
            turns.start(call)  # a call on a local lane
            return
        began = time.monotonic()
        try:
            call.run()
        except BaseException:  # the call has its reply; the turn must end whatever failed since
            extra = fields(Event.INTERNAL_ERROR, operator=call.operator)
            LOG.exception("failed to plan calls like one of %s", call.operator, extra=extra)
        turns.note(time.monotonic() - began)
        call = turns.end()
