"""Sends the calls of a blocking session: to the daemon, or directly to an interpreter."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc

from opdispatch_client.blocking.call_future import Abandon, CallFuture
from opdispatch_client.blocking.daemon_calls import DaemonCalls
from opdispatch_client.blocking.one_thread import OneThread
from opdispatch_client.blocking.planned_calls import PlannedCalls, Way
from opdispatch_client.blocking.submitted_futures import SubmittedFutures
from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.busy_watch import BusyWatch
from opdispatch_client.lanes.call_attempt import CallAttempt, is_route_right
from opdispatch_client.lanes.call_plan import CallPlans
from opdispatch_client.lanes.direct_local import DirectLanes
from opdispatch_client.lanes.direct_streams import BlockingDirectStreams
from opdispatch_client.lanes.direct_way import RelayedWay
from opdispatch_client.lanes.idle_memory import IdleMemoryThread
from opdispatch_client.lanes.lane_choice import direct_kind
from opdispatch_client.lanes.protocol import CallLane
from opdispatch_client.lanes.relayed_calls import RelayedCall
from opdispatch_client.lanes.routes import Routes, find_refusal
from opdispatch_client.lanes.to_daemon import DaemonLane
from opdispatch_client.lanes.waiting_calls import WaitingCall, may_move, waiting_call
from opdispatch_client.listings import Interpreter, ServerInfo
from opdispatch_client.operator_call import Call
from opdispatch_client.session_memory import SessionMemory
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    MessageTooLargeError,
    RefusedError,
)
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.lane_messages import InterpreterBusyError, LaneClosedError
from opdispatch_wire.lanes.pending_calls import OnDone
from opdispatch_wire.shared_memory.peer_memory import is_without_room
from opdispatch_wire.status import lost_connection_error, no_thread_left_error
from opdispatch_wire.v1 import execution_pb2


class BlockingCalls:
    """Sends the calls of one session. Any number of threads may use it.

    ``introduce`` repeats the handshake with the daemon and returns its answer and the message
    limit; ``list_interpreters`` asks the daemon for the state of its interpreters.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.Channel,
        introduce: Callable[[], tuple[ServerInfo, int]],
        list_interpreters: Callable[[], list[Interpreter]],
    ) -> None:
        self._endpoint = endpoint
        self._daemon = DaemonLane(endpoint, channel, introduce)
        self._busy = BusyWatch(list_interpreters)
        self._tender = IdleMemoryThread(self._tend)
        self.memory = SessionMemory(is_wanted=endpoint.direct, on_use=self._tender.wake)
        self._routes = Routes()
        self._direct = DirectLanes(self.memory, self._routes)
        self._direct_streams = BlockingDirectStreams(endpoint, self._routes)
        self._futures = SubmittedFutures()
        # Lanes with calls that have begun but may not have been sent.
        self._unsent: dict[CallLane, None] = {}
        self._plans = CallPlans()
        self._at_daemon = DaemonCalls(endpoint, self._daemon, self._plans, self._routes)
        # Separate from the callbacks' thread, since callbacks may wait for a call made here.
        self._second_ways = OneThread("call-second-ways")
        planned = PlannedCalls(
            endpoint,
            self._plans,
            self._direct,
            self._direct_streams,
            self._busy,
            self,
            self._futures,
            self._at_daemon,
        )
        self.call_planned = planned.call
        self.submit_planned = planned.submit

    @property
    def lane(self) -> str:
        """The name of the lane to the daemon."""
        return self._daemon.name

    def open(self, info: ServerInfo, limit: int) -> None:
        """Choose a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if no lane of the kind that the endpoint requires can be
        opened.
        """
        self._daemon.open(info, limit)

    def close(self) -> None:
        """End all calls, and refuse new ones. Idempotent."""
        if not self._endpoint.is_of_this_process:
            return
        self._busy.stop()
        self._daemon.close()
        self._direct.close()
        self._direct_streams.close()
        self._tender.stop()
        self.memory.close()
        self._futures.close()
        self._second_ways.close()

    def call(self, call: Call) -> Any:
        """Make a call and wait for its result. Raises the call's error."""
        attempt = CallAttempt(call, self._endpoint)
        try:
            return attempt.read(self.reply_to(attempt))
        finally:
            attempt.close()

    def reply_to(
        self, attempt: CallAttempt, failed: tuple[Way, Exception] | None = None
    ) -> execution_pb2.CallReply:
        """Return the reply to a call; ``failed`` is its direct lane and the outcome there."""
        self._endpoint.check_process()
        try:
            if failed is None:
                reply = self._call_directly(attempt)
            elif isinstance(failed[1], LaneClosedError | RefusedError):
                self._direct_call_failed(attempt, *failed)
                reply = None
            else:
                raise failed[1]
            if reply is None:
                reply = self._at_daemon.call(attempt)
                self._learn(attempt, reply)
        except (TimeoutError, LaneClosedError, OSError) as error:
            raise self._at_daemon.failure(error, attempt) from None
        return reply

    def submit(
        self,
        make: Callable[[], Call],
        *,
        flush: bool = True,
        deadline: float | None = None,
        abandon: Abandon | None = None,
    ) -> Future[Any]:
        """Begin the call that ``make`` returns; every error becomes the future's exception.

        Waits while SUBMITTED_AT_MOST calls are in flight, until the call's ``deadline`` if it has
        one. With ``flush`` false the request may stay in the buffer. ``abandon`` is called if the
        call gets no result.
        """
        future = self._futures.begin(abandon)
        if future is None:
            self.flush()
            future = self._futures.begin_until(deadline, abandon)
            if future.done():
                return future
        try:
            self._begin(CallAttempt(make(), self._endpoint, detached=True), future)
        except Exception as error:
            future.fail(error)
        if flush:
            self.flush()
        return future

    def flush(self) -> None:
        """Send the submitted requests that are still buffered."""
        while self._unsent and self._endpoint.is_of_this_process:
            with contextlib.suppress(KeyError):  # another thread has taken the last one
                self._unsent.popitem()[0].flush()

    def _begin(self, attempt: CallAttempt, future: CallFuture) -> None:
        try:
            self._endpoint.check_process()
            if self._begin_directly(attempt, future):
                return
            if self._daemon.is_open or self._daemon.is_closed:
                self._begin_at_daemon(attempt, future)
            else:
                error = lost_connection_error(self._endpoint.address, "the lane has ended")
                self._at_second(attempt, future, error, self._begin_at_daemon, attempt, future)
        except (LaneClosedError, OSError) as error:
            attempt.close()
            raise self._at_daemon.failure(error, attempt) from None
        except BaseException:
            attempt.close()
            raise

    def _begin_at_daemon(
        self, attempt: CallAttempt, future: CallFuture, wait: DaemonWait | None = None
    ) -> None:
        """Begin the call at the daemon, or in the thread for second attempts if it is away."""

        lane = self._daemon.get(attempt.deadline)
        attempt.prepare(lane.inline_bytes)
        on_done = functools.partial(self.end_at_daemon, attempt, lane, future, wait=wait)
        try:
            self._begin_on(lane, attempt, future, on_done)
        except (LaneClosedError, DaemonUnavailableError) as error:
            on_done(error)

    def end_at_daemon(
        self,
        attempt: CallAttempt,
        lane: CallLane,
        future: CallFuture,
        result: execution_pb2.CallReply | Exception,
        wait: DaemonWait | None = None,
    ) -> None:
        """End a call that was sent to the daemon on that lane, or ask the daemon again."""
        why = attempt.find_lost(result)
        if why is not None:
            waiting = wait or DaemonWait(self._endpoint.wait, attempt.deadline)
            # In another thread: this one reads replies, and sending may block.
            again = functools.partial(self._ask_again, attempt, lane, future, waiting, why)
            self._at_second(attempt, future, why, again)
            return
        if not isinstance(result, Exception):
            self._learn(attempt, result)
            self._at_daemon.learn(attempt, lane)
        self._end(attempt, future, result)

    def _ask_again(
        self,
        attempt: CallAttempt,
        lane: CallLane,
        future: CallFuture,
        wait: DaemonWait,
        why: Exception,
    ) -> None:
        self._at_daemon.prepare_to_ask_again(attempt, wait, lane, why)
        self._begin_at_daemon(attempt, future, wait)

    def _at_second(
        self,
        attempt: CallAttempt,
        future: CallFuture,
        why: Exception,
        ask: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """Run ``ask`` in the thread for second attempts; its error becomes the call's."""

        def run() -> None:
            try:
                if future.cancelled():
                    attempt.close()
                else:
                    ask(*arguments)
            except Exception as error:
                self._end(attempt, future, error)
            self.flush()

        try:
            self._second_ways.submit(run)
        except RuntimeError:  # the session is closed, or the system's limit reached
            self._end(attempt, future, why)

    def _begin_on(
        self,
        lane: CallLane,
        attempt: CallAttempt,
        future: CallFuture,
        on_done: OnDone,
        waiting: WaitingCall | None = None,
    ) -> None:
        what, timeout = attempt.call.what, attempt.time_left()
        if isinstance(lane, BlockingLane):
            memory, tensors = attempt.memory, attempt.tensors
            number = lane.begin(attempt.request, timeout, what, on_done, memory, tensors)
        else:
            number = lane.begin(attempt.request, timeout, what, on_done, tensors=attempt.tensors)

        self.let_end(lane, number, future, on_done, attempt.relayed, waiting)

    def let_end(
        self,
        lane: CallLane,
        number: int,
        future: CallFuture,
        on_done: OnDone,
        relayed: RelayedCall | None,
        waiting: WaitingCall | None,
    ) -> None:
        """Let a call that has begun be cancelled, or given up while its interpreter is busy."""

        # These closures refer to no arguments: futures outlive them.
        def cancel() -> None:
            lane.cancel(number)
            if relayed is not None:
                relayed.end()
            if waiting is not None:
                self._busy.remove(waiting)

        def give_up() -> None:
            if lane.cancel(number):  # otherwise it has just ended
                on_done(InterpreterBusyError())

        if waiting is not None:
            self._busy.begun(waiting, give_up)
        future.cancel_call = cancel
        if future.cancelled():  # cancelled before ``cancel_call`` was set
            cancel()
        self._unsent[lane] = None

    def _end(
        self,
        attempt: CallAttempt,
        future: CallFuture,
        result: execution_pb2.CallReply | Exception,
    ) -> None:
        try:
            if isinstance(result, Exception):
                raise self._at_daemon.failure(result, attempt)
            value = attempt.read(result)
        except BaseException as error:  # any error becomes the future's
            future.fail(error)
        else:
            future.succeed(value)
        finally:
            attempt.close()

    # -- calls that go directly to an interpreter -----------------------------------------------

    def _find_way(self, attempt: CallAttempt) -> Way | None:
        """Return a direct route for a call; if none is known, ask the daemon for one."""
        kind = direct_kind(self._endpoint, self._daemon.name)
        if kind is None or (shape := attempt.call.shape) is None:
            return None
        limit = self._daemon.max_message_bytes
        way: Way | RelayedWay | None
        if kind == "local":
            way = self._direct.find(shape, limit, attempt.deadline)
        else:
            way = self._direct_streams.find(shape, limit)
        if way is None:
            if self._routes.wants(shape):
                attempt.ask_for_route()
            return None
        if isinstance(way, RelayedWay):
            attempt.relay(way, self._routes.relayed)
            return None
        if isinstance(way.lane, BlockingLane):
            attempt.encode(way.lane.memory)
        else:
            attempt.prepare_for_stream(way.lane.inline_bytes)
        way.route.direct(attempt.request)
        return way

    def _learn(self, attempt: CallAttempt, reply: execution_pb2.CallReply) -> None:
        if not attempt.request.wants_route:
            return
        shape = attempt.call.shape
        self._routes.learn(shape, reply, attempt.route_epoch)
        if direct_kind(self._endpoint, self._daemon.name) == "stream":
            self._direct_streams.prepare(shape, self._daemon.max_message_bytes)

    def _call_directly(self, attempt: CallAttempt) -> execution_pb2.CallReply | None:
        """Return the reply, or None if the daemon has to be asked."""
        way = self._find_way(attempt)
        if way is None:
            return None
        request, what, timeout = attempt.request, attempt.call.what, attempt.time_left()
        moves = may_move(way, request)
        watch = functools.partial(self._busy.watching, way) if moves else None
        try:
            if isinstance(way.lane, BlockingLane):
                reply = way.lane.call(request, timeout, what, attempt.memory, watch=watch)
            else:
                reply = way.lane.call(request, timeout, what, attempt.tensors, watch)
        except (LaneClosedError, MessageTooLargeError) as error:
            self._direct_call_failed(attempt, way, error)
            return None
        if (refusal := find_refusal(reply)) is not None:
            self._direct_call_failed(attempt, way, refusal)
            return None
        way.route.note_wait(reply.has_waited)
        self._plans.learn(attempt.call, request, way, way.lane.max_message_bytes)
        return reply

    def _begin_directly(self, attempt: CallAttempt, future: CallFuture) -> bool:
        """Begin the call directly; return False if the daemon has to be asked."""
        way = self._find_way(attempt)
        if way is None:
            return False
        waiting = waiting_call(way) if may_move(way, attempt.request) else None

        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            if waiting is not None:
                self._busy.remove(waiting)
            self.end_directly(attempt, way, future, result)

        if waiting is not None:
            self._busy.add(waiting)
        try:
            self._begin_on(way.lane, attempt, future, on_done, waiting)
        except BaseException as error:
            if waiting is not None:
                self._busy.remove(waiting)
            if not isinstance(error, LaneClosedError | MessageTooLargeError):
                raise
            self._direct_call_failed(attempt, way, error)
            return False
        return True

    def end_directly(
        self,
        attempt: CallAttempt,
        way: Way,
        future: CallFuture,
        result: execution_pb2.CallReply | Exception,
    ) -> None:
        """End a call that was sent directly, or hand it over to the daemon."""

        def end_here(why: Exception, no_thread: RuntimeError) -> None:
            try:
                if self._daemon.is_closed:
                    raise self._endpoint.closed_error()
                self._direct_call_failed(attempt, way, why)
                raise no_thread_left_error("to make a call again", no_thread)
            except Exception as error:
                self._end(attempt, future, error)

        def ask_daemon(why: Exception) -> None:
            try:
                self._direct_call_failed(attempt, way, why)
                if future.cancelled():
                    attempt.close()
                else:
                    self._begin_at_daemon(attempt, future)
            except Exception as error:
                attempt.close()
                future.fail(self._at_daemon.failure(error, attempt))
            self.flush()

        why: Exception | None
        if isinstance(result, Exception):
            why = result if isinstance(result, LaneClosedError) else None
        else:
            why = find_refusal(result)
            way.route.note_wait(result.has_waited)
        if why is None:
            self._end(attempt, future, result)
            if not isinstance(result, Exception):
                limit = way.lane.max_message_bytes
                self._plans.learn(attempt.call, attempt.request, way, limit)
            return
        if isinstance(why, RefusedError) and not is_route_right(why):
            attempt.stay(way, self._routes)
        try:
            # In another thread: this one reads replies, and sending may block.
            self._second_ways.submit(ask_daemon, why)
        except RuntimeError as error:  # the session is closed, or the system's limit reached
            end_here(why, error)

    def _direct_call_failed(self, attempt: CallAttempt, way: Way, why: Exception) -> None:
        if isinstance(way.lane, BlockingLane) and is_without_room(why):
            self.memory.refuse(way.lane.memory, why)
        attempt.leave(way, self._routes, why)
        if self._daemon.is_closed:
            raise self._endpoint.closed_error()

    def _tend(self) -> bool:
        """Release unused shared memory; return whether there may be more to release later."""
        if not self._endpoint.is_of_this_process:
            return False
        self._direct.tend()
        self.memory.trim()
        return self.memory.is_in_use
