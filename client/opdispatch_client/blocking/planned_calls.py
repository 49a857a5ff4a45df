"""The calls of a blocking session that follow plans: see Note [Planned calls] in ``call_plan``."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from opdispatch_client.blocking.call_future import CallFuture
from opdispatch_client.blocking.daemon_calls import DaemonCalls
from opdispatch_client.blocking.submitted_futures import SubmittedFutures
from opdispatch_client.endpoint import THIS_PROCESS, Endpoint
from opdispatch_client.lanes.busy_watch import BusyWatch
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_client.lanes.call_plan import UNPLANNED, CallPlan, CallPlans, PlannedArguments
from opdispatch_client.lanes.direct_local import DirectLanes
from opdispatch_client.lanes.direct_streams import BlockingDirectStreams
from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.planned_memory import PlannedMemory
from opdispatch_client.lanes.protocol import CallLane
from opdispatch_client.lanes.relayed_calls import RelayedCall
from opdispatch_client.lanes.routes import find_refusal
from opdispatch_client.lanes.waiting_calls import WaitingCall, waiting_call
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.blocking_stream import BlockingStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode, OnDone
from opdispatch_wire.shared_memory.peer_memory import PeerMemory
from opdispatch_wire.v1 import execution_pb2

Way = DirectWay[BlockingLane] | DirectWay[BlockingStream]
"""A direct lane to an interpreter."""


class GeneralCalls(Protocol):
    """The general path of a session's calls."""

    def reply_to(
        self,
        attempt: CallAttempt,
        failed: tuple[Way, Exception] | None = None,
    ) -> execution_pb2.CallReply:
        """Return the reply to a call; ``failed`` is its direct lane and the outcome there."""

    def end_directly(
        self,
        attempt: CallAttempt,
        way: Way,
        future: CallFuture,
        result: execution_pb2.CallReply | Exception,
    ) -> None:
        """End a call that was sent directly, or hand it over to the daemon."""

    def end_at_daemon(
        self,
        attempt: CallAttempt,
        lane: CallLane,
        future: CallFuture,
        result: execution_pb2.CallReply | Exception,
    ) -> None:
        """End a call that was sent to the daemon on that lane, or ask the daemon again."""

    def let_end(
        self,
        lane: CallLane,
        number: int,
        future: CallFuture,
        on_done: OnDone,
        relayed: RelayedCall | None,
        waiting: WaitingCall | None,
    ) -> None:
        """Make a call that has begun cancellable, and movable if its interpreter is busy."""

    def flush(self) -> None:
        """Send the submitted requests that are still buffered."""


class PlannedCalls:
    """The planned calls of one session. Any number of threads may make them.

    ``general`` takes over calls that meet something unusual; ``futures`` holds those of submitted
    calls, and ``daemon`` makes the calls that never go directly.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        plans: CallPlans,
        direct: DirectLanes,
        streams: BlockingDirectStreams,
        busy: BusyWatch,
        general: GeneralCalls,
        futures: SubmittedFutures,
        daemon: DaemonCalls,
    ) -> None:
        self._endpoint = endpoint
        self._plans = plans
        self._find_again: Mapping[type, Callable[[Any, Hashable], Way | None]] = {
            BlockingLane: direct.find_again,
            BlockingStream: streams.find_again,
        }
        self._busy = busy
        self._general = general
        self._futures = futures
        self._daemon = daemon
        self._timeout = None if endpoint.timeout == math.inf else endpoint.timeout

    def call(self, operator: str, planned: PlannedArguments) -> Any:
        """Make a call by its plan: see Note [Planned calls].

        Returns UNPLANNED if no plan is valid, with nothing sent. Raises the call's error.
        """
        plan = self._plans.find(planned.key)
        if plan is None:
            return UNPLANNED
        if plan.way is None:
            return self._daemon.call_planned(operator, planned, plan)
        if plan.alone is not None:
            plan = plan.alone
        found = self._find_way(plan)
        if found is None:
            return UNPLANNED
        way, peer = found
        timeout, lane, shared = self._timeout, way.lane, None
        encode: Callable[[int], bytes] = functools.partial(plan.form.write, planned.leaves, timeout)
        read: Decode = plan.read
        if plan.shares:
            shared = PlannedMemory.of(plan, planned.leaves, timeout, lane.memory, peer)
            if shared is None:
                return UNPLANNED
            encode, read = shared.encode, shared.read
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = functools.partial(self._busy.watching, way) if plan.moves else None
        try:
            reply = lane.exchange(encode, deadline, watch, read)
        except OSError as error:  # TimeoutError and LaneClosedError among them
            number = error.call if isinstance(error, LaneClosedError) else 0
            again = self._planned_attempt(operator, planned, way, deadline, number, peer, shared)
            return self._go_on(again, way, error)
        if type(reply) is tuple:
            if way.route.waits:
                way.route.note_wait(False)
            return reply[0]
        again = self._planned_attempt(operator, planned, way, deadline, reply.id, peer, shared)
        if (refusal := find_refusal(reply)) is not None:
            return self._go_on(again, way, refusal)
        try:
            result = again.read(reply)
        finally:
            again.close()
        way.route.note_wait(reply.has_waited)
        return result

    def _go_on(self, again: CallAttempt, way: Way, why: Exception) -> Any:
        """Continue, on the general path, a call that failed on its direct lane."""
        try:
            return again.read(self._general.reply_to(again, (way, why)))
        finally:
            again.close()

    def _find_way(self, plan: CallPlan) -> tuple[Way, PeerMemory | None] | None:
        """Return the lane of a call about to be sent, and the memory of its results.

        None means that the plan is not valid now. The memory is returned with the lane because
        results in it stay readable after the lane has ended.
        """
        way = plan.way
        if way is None or self._endpoint.process != THIS_PROCESS.number:
            return None
        route = way.route
        if not route.is_current or len(route.targets) != 1 or not route.within_reach:
            found = self._find_again[type(way.lane)](way, plan.shape)
            if found is None or plan.size > found.lane.max_message_bytes:
                return None
            way = found
        memory = way.lane.memory
        if memory is not None and memory.released:
            memory.tell_releases()
        return way, None if memory is None else memory.peer

    def _planned_attempt(
        self,
        operator: str,
        planned: PlannedArguments,
        way: Way,
        deadline: float | None,
        number: int,
        peer: PeerMemory | None,
        shared: PlannedMemory | None,
    ) -> CallAttempt:
        call = planned.call(operator, retry=self._endpoint.retry)
        if shared is not None and shared.request:
            attempt = CallAttempt.of_sent(call, self._endpoint, shared.request, shared.memory)
            attempt.deadline = deadline
            return attempt
        memory = way.lane.memory
        return CallAttempt.of_planned(
            call, self._endpoint, way, memory, peer, number=number, deadline=deadline
        )

    def submit(
        self, operator: str, planned: PlannedArguments, *, flush: bool
    ) -> Future[Any] | None:
        """Begin a call by its plan: see Note [Planned calls].

        None if no plan is valid, or the call would have to wait; nothing has begun then.
        """
        plan = self._plans.find(planned.key)
        if plan is None:
            return None
        if plan.way is None:
            return self._submit_to_daemon(operator, planned, plan, flush=flush)
        found = self._find_way(plan)
        keep = planned.keep
        abandon = None if keep is None else keep.abandon
        if found is None or (future := self._futures.begin(abandon)) is None:
            return None
        way, peer = found
        timeout, request = self._timeout, b""
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = waiting_call(way) if plan.moves else None

        shared: PlannedMemory | None = None
        read: Decode = plan.read
        if plan.shares:
            shared = PlannedMemory.of(plan, planned.leaves, timeout, way.lane.memory, peer)
            if shared is None:
                future.cancel()
                return None
            read = shared.read

        def encode(number: int) -> bytes:
            nonlocal request
            if shared is not None:
                request = shared.encode(number)
            else:
                request = plan.form.write(planned.leaves, timeout, number)
            return request

        def on_done(result: Any) -> None:
            if waiting is not None:
                self._busy.remove(waiting)
            if type(result) is not tuple:
                call = planned.call(operator, retry=self._endpoint.retry)
                call.hold()
                planned.leaves.clear()  # an exception that is kept would keep these alive
                lane = way.lane.memory
                memory = None if lane is None else lane.new_call(peer)
                if shared is not None:
                    memory = shared.memory
                attempt = CallAttempt.of_sent(call, self._endpoint, request, memory)
                attempt.deadline = deadline
                self._general.end_directly(attempt, way, future, result)
                return
            if way.route.waits:
                way.route.note_wait(False)
            future.succeed(result[0])

        if waiting is not None:
            self._busy.add(waiting)
        try:
            number = way.lane.begin_plain(encode, timeout, on_done, read)
        except BaseException as error:
            if waiting is not None:
                self._busy.remove(waiting)
            future.cancel()
            if isinstance(error, LaneClosedError | RefusedError):
                return None  # the general path finds another route, or reports why there is none
            raise
        self._general.let_end(way.lane, number, future, on_done, None, waiting)
        if flush:
            self._general.flush()
        return future

    def _submit_to_daemon(
        self, operator: str, planned: PlannedArguments, plan: CallPlan, *, flush: bool
    ) -> Future[Any] | None:
        """Begin a call through the daemon like ``submit``."""
        lane = self._daemon.find_lane(plan)
        if lane is None or (future := self._futures.begin()) is None:
            return None
        timeout, request = self._timeout, b""
        deadline = None if timeout is None else time.monotonic() + timeout

        def encode(number: int) -> bytes:
            nonlocal request
            request = plan.form.write(planned.leaves, timeout, number)
            return request

        def on_done(result: Any) -> None:
            if type(result) is tuple:
                future.succeed(plan.result_of(result, planned))
                return
            call = planned.call(operator, retry=self._endpoint.retry)
            call.hold()
            planned.leaves.clear()  # an exception that is kept would keep these alive
            attempt = CallAttempt.of_sent(call, self._endpoint, request, None)
            attempt.deadline = deadline
            self._general.end_at_daemon(attempt, lane, future, result)

        try:
            number = lane.begin_plain(encode, timeout, on_done, plan.read)
        except BaseException as error:
            future.cancel()
            if isinstance(error, LaneClosedError | RefusedError):
                return None  # the general path opens another lane, or reports why there is none
            raise
        self._general.let_end(lane, number, future, on_done, None, None)
        if flush:
            self._general.flush()
        return future
