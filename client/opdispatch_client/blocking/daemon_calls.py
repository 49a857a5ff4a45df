"""The calls of a blocking session that wait for the daemon's reply."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Hashable
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_client.daemon_wait import DaemonWait, is_stopping
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_client.lanes.call_plan import UNPLANNED, CallPlan, CallPlans, PlannedArguments
from opdispatch_client.lanes.lane_choice import direct_kind
from opdispatch_client.lanes.protocol import CallLane
from opdispatch_client.lanes.routes import Routes
from opdispatch_client.lanes.to_daemon import DaemonLane
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.blocking_stream import BlockingStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2


class DaemonCalls:
    """The calls of one session through the daemon. Any number of threads may make them.

    Calls without a direct route follow ``plans``: see Note [Planned calls] in ``call_plan``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        daemon: DaemonLane,
        plans: CallPlans,
        routes: Routes,
    ) -> None:
        self._endpoint = endpoint
        self._daemon = daemon
        self._plans = plans
        self._routes = routes
        self._timeout = None if endpoint.timeout == math.inf else endpoint.timeout

    def call(self, attempt: CallAttempt) -> execution_pb2.CallReply:
        """Return the daemon's reply; wait for a daemon that restarts."""
        wait = DaemonWait(self._endpoint.wait, attempt.deadline)
        while True:
            lane = self._daemon.get(attempt.deadline)
            attempt.prepare(lane.inline_bytes)
            request, what = attempt.request, attempt.call.what
            try:
                reply = lane.call(request, attempt.time_left(), what, tensors=attempt.tensors)
                why = attempt.find_lost(reply)
                if why is None:
                    self.learn(attempt, lane)
                    return reply
            except (OpdispatchError, LaneClosedError) as error:
                # Leave a raised error in no variable: its traceback refers to this frame, a cycle.
                if (why := attempt.find_lost(error)) is None:
                    raise
            self.prepare_to_ask_again(attempt, wait, lane, why)

    def learn(self, attempt: CallAttempt, lane: CallLane) -> None:
        """Plan calls like one that the daemon has answered, unless its request asked for more."""
        request = attempt.request
        asks = request.wants_route or request.preferred_session or request.HasField("lost")
        if not (asks or request.HasField("keep")):
            self._plans.learn(attempt.call, request, None, lane.max_message_bytes)

    def prepare_to_ask_again(
        self, attempt: CallAttempt, wait: DaemonWait, lane: CallLane, why: Exception
    ) -> None:
        """Wait until the daemon may be back. Raises ``why`` if the call must not be sent again."""
        if is_stopping(why):
            self._daemon.leave(lane)
        pause = attempt.pause_before_asking_again(why, wait)
        if self._daemon.is_closed:
            raise self._endpoint.closed_error()
        self._daemon.pause(pause)

    def call_planned(self, operator: str, planned: PlannedArguments, plan: CallPlan) -> Any:
        """Make a call by its plan: see Note [Planned calls].

        Returns UNPLANNED if the plan is not valid, with nothing sent. Raises the call's error.
        """
        if (lane := self.find_lane(plan)) is None:
            return UNPLANNED
        timeout = self._timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        encode = functools.partial(plan.form.write, planned.leaves, timeout)
        try:
            outcome = lane.exchange(encode, deadline, None, plan.read)
        except OSError as error:  # TimeoutError and LaneClosedError among them
            outcome = error
        if type(outcome) is tuple:
            return plan.result_of(outcome, planned)
        attempt = CallAttempt(planned.call(operator, retry=self._endpoint.retry), self._endpoint)
        attempt.deadline = deadline
        try:
            return attempt.read(self._go_on(attempt, lane, outcome))
        except (TimeoutError, LaneClosedError, OSError) as error:
            raise self.failure(error, attempt) from None
        finally:
            del outcome  # an error refers to this frame
            attempt.close()

    def find_lane(self, plan: CallPlan) -> BlockingLane | BlockingStream | None:
        """Return the lane to the daemon for a planned call; None if it must take the general path.

        It must if the lane is not open or is one of gRPC requests, or if the call may go directly.
        """
        if not (self._endpoint.is_of_this_process and self._daemon.is_open):
            return None
        lane = self._daemon.get(None)
        if not isinstance(lane, BlockingLane | BlockingStream):
            return None
        if plan.size > lane.max_message_bytes or self._may_go_directly(plan.shape):
            return None
        return lane

    def failure(self, error: Exception, attempt: CallAttempt) -> Exception:
        """Return the exception to raise to the caller for a transport error."""
        if isinstance(error, LaneClosedError | DaemonUnavailableError) and self._daemon.is_closed:
            return self._endpoint.closed_error()
        return attempt.explain(error)

    def _may_go_directly(self, shape: Hashable) -> bool:
        """Return whether calls of a shape have a route, or the daemon should be asked for one."""
        if direct_kind(self._endpoint, self._daemon.name) is None:
            return False
        return self._routes.find(shape) is not None or self._routes.wants(shape)

    def _go_on(
        self,
        attempt: CallAttempt,
        lane: CallLane,
        outcome: execution_pb2.CallReply | Exception,
    ) -> execution_pb2.CallReply:
        """Return the reply to a planned call that needs further requests after ``outcome``."""
        attempt.prepare(lane.inline_bytes)
        try:
            if (why := attempt.find_lost(outcome)) is not None:
                wait = DaemonWait(self._endpoint.wait, attempt.deadline)
                self.prepare_to_ask_again(attempt, wait, lane, why)
                return self.call(attempt)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # an error refers to this frame
