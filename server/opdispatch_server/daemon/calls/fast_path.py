"""Forward calls that wait for their kernels only, without a task for each."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.interpreter_queue import Slot
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_choice import CallChooser, Choice
from opdispatch_server.daemon.calls.kernel_run import KernelRun
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.lost_replies import is_refused_as_unfit
from opdispatch_server.daemon.calls.nested import (
    NESTED_CALLS_PER_INTERPRETER,
    RunningKernel,
    context_of_call,
)
from opdispatch_server.daemon.calls.relay_plan import RelayedCall, RelayPlans
from opdispatch_server.daemon.calls.replica_choice import choose_replica
from opdispatch_server.daemon.calls.retry import may_run_twice
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.libraries.device_holders import DeviceHolders
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.replica import Replica
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.serving.call_protocols import OnReply
from opdispatch_wire.errors import MessageTooLargeError
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2


class QuickCall:
    """Forwards one request and its reply in the event-loop steps in which they arrive.

    ``on_reply`` is called once, unless the call is abandoned first; ``on_end`` is always called,
    before it.
    """

    __slots__ = (
        "_is_ended",
        "_library",
        "_on_end",
        "_on_reply",
        "_replica",
        "_route",
        "_run",
        "_timer",
    )

    def __init__(
        self,
        library: LibraryVersion,
        replica: Replica,
        route: execution_pb2.Route | None,
        on_reply: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        self._library = library
        self._replica = replica
        self._route = route
        self._on_reply = on_reply
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._is_ended = False

    def begin(
        self,
        runs: KernelRuns,
        request: execution_pb2.CallRequest,
        context: CallContext,
        slot: Slot | None,
        *,
        may_move: bool,
    ) -> None:
        """Send the request; one that ``may_move`` goes to another interpreter if this one is busy.

        Raises LaneClosedError and MessageTooLargeError, and then the call never began.
        """
        timeout = context.timeout
        session = self._replica.session
        on_move = self._move if may_move else None
        self._run = runs.begin(session, request, context, slot, self._kernel_ended, on_move)
        self._note_begun(timeout)

    def begin_planned(self, runs: KernelRuns, call: RelayedCall, slot: Slot) -> None:
        """Send the request of a planned call, like ``begin``. Raises LaneClosedError."""
        session, plan = self._replica.session, call.plan
        on_move = self._move if plan.may_move else None
        self._run = runs.begin_planned(
            session, plan.operator, call.encode, plan.rest_of, slot, self._kernel_ended, on_move
        )
        self._note_begun(call.timeout)

    def _note_begun(self, timeout: float | None) -> None:
        self._library.begin_call()
        self._replica.begin_call()
        if timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._late)

    def _move(self) -> None:
        if not self._is_ended:
            self.abandon()
            self._on_reply(self._run)

    def abandon(self) -> None:
        """Discard the reply when it arrives: the caller has cancelled. Idempotent."""
        if not self._is_ended:
            self._run.is_abandoned = True
            self._end()

    def _late(self) -> None:
        if not self._is_ended:
            self.abandon()
            self._on_reply(self._run.late_error())

    def _kernel_ended(self, reply: bytes | execution_pb2.CallReply | None) -> None:
        if self._is_ended:
            return
        self._end()
        if isinstance(reply, bytes):
            self._on_reply(reply)
            return
        if reply is None or is_refused_as_unfit(reply, self._replica.session):
            self._replica.note_failure()
            self._on_reply(self._run)
            return
        if self._route is not None:
            reply.route.CopyFrom(self._route)
        self._on_reply(reply)

    def _end(self) -> None:
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._library.end_call()
        self._replica.end_call()
        self._on_end()


class QuickCalls:
    """Begins the calls that can be forwarded quickly. For use in the event loop only."""

    def __init__(
        self,
        operators: OperatorRegistry,
        chooser: CallChooser,
        devices: DeviceHolders,
        routes: DirectRoutes,
        queues: InterpreterQueues,
        runs: KernelRuns,
        blame: Blame,
    ) -> None:
        self._operators = operators
        self._chooser = chooser
        self._devices = devices
        self._routes = routes
        self._queues = queues
        self._runs = runs
        self._blame = blame
        self.plans = RelayPlans(operators)
        """The plans of calls that are forwarded without parsing their arguments."""

    def begin(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        on_reply: OnReply[KernelRun],
        on_end: Callable[[], None],
    ) -> QuickCall | None:
        """Begin a call if it is a quick one; otherwise return None, with nothing begun.

        A call is quick if its kernel is known and can run now, over a local lane. A call made by a
        running kernel needs no slot: see Note [Nested calls take no slot].
        """
        if _is_unusual(request):
            return None
        parent = self._runs.find(context.run) if context.run else None
        if parent is None and (context.run or context.is_from_kernel):
            # Made during an import, by a thread that a kernel left behind, or by an ended kernel.
            return None
        if parent is not None and parent.is_abandoned:
            return None
        epoch = self._operators.dispatcher.epoch  # before the choice: see ``RelayPlans.add``
        choice = self._chooser.find(request)
        if choice is None:
            return None
        kernel = self._operators.find_kernel(choice.resolution.registration)
        if kernel is None:
            return None
        library, place = kernel
        replica = self._choose_replica(library, choice, request.preferred_session)
        if replica is None:
            return None
        name = request.operator
        direct: execution_pb2.Route | None = None
        slot: Slot | None = None
        if parent is None:
            if request.wants_route:
                targets = self._devices.find_targets(choice.op, library, choice.devices)
                direct = self._routes.find(
                    name, request, choice.op, library, place, choice.keys, targets
                )
            if context.message:
                self.plans.add(context.message, request, choice, library, place, epoch)
            slot = self._try_enter(replica, library, str(choice.op.name))
            if slot is None:
                return None
            context = context.in_lane(library.load_id, library.max_concurrency)
        elif replica.session.calls_in_flight < NESTED_CALLS_PER_INTERPRETER:
            context = context_of_call(context, parent)
            parent.nested_calls.begin()
            on_end = functools.partial(self._end_nested, parent, on_end)
        else:
            return None
        # From here on the call owns the slot: nothing may fail before it does.
        choice.name_kernel(request, library.load_id, place)
        call = QuickCall(library, replica, direct, on_reply, on_end)
        try:
            may_move = may_run_twice(request, writes=choice.writes)
            call.begin(self._runs, request, context, slot, may_move=may_move)
        except (LaneClosedError, MessageTooLargeError):
            request.operator = name
            if parent is not None:
                self._runs.end_nested_in(parent)
            return None
        return call

    def begin_planned(
        self, relayed: RelayedCall, on_reply: Callable[[Any], None], on_end: Callable[[], None]
    ) -> QuickCall | None:
        """Begin a planned call like ``begin``."""
        plan = relayed.plan
        replica = self._choose_replica(plan.library, plan.choice, 0)
        slot = None if replica is None else self._try_enter(replica, plan.library, plan.operator)
        if replica is None or slot is None:
            return None
        call = QuickCall(plan.library, replica, None, on_reply, on_end)
        try:
            call.begin_planned(self._runs, relayed, slot)
        except LaneClosedError:
            return None
        return call

    def _choose_replica(
        self, library: LibraryVersion, choice: Choice, preferred: int
    ) -> Replica | None:
        """Return the replica for a quick call; None if the call has to wait or to run alone."""
        if not self._blame.is_quiet and self._blame.is_watched(library.name, str(choice.op.name)):
            return None
        unable = self._devices.unable(library, choice.devices)
        replica = choose_replica(library, unable, preferred)
        return replica if replica is not None and replica.session.has_lane else None

    def _try_enter(self, replica: Replica, library: LibraryVersion, operator: str) -> Slot | None:
        queue = self._queues.queue_of(replica.session)
        return queue.try_enter(library.load_id, library.max_concurrency, operator)

    def _end_nested(self, parent: RunningKernel, on_end: Callable[[], None]) -> None:
        self._runs.end_nested_in(parent)
        on_end()


def _is_unusual(request: execution_pb2.CallRequest) -> bool:
    """Return whether a call needs more than one kernel run and its results."""
    return bool(
        request.trace
        or request.program
        or request.adopt
        or request.HasField("keep")
        or request.HasField("lost")
        or request.HasField("profile")
        or request.HasField("chunk")
    )
