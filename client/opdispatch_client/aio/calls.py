"""Sends the calls of an asyncio session: to the daemon, or directly to an interpreter."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_client.aio.one_loop import OneLoop
from opdispatch_client.daemon_wait import DaemonWait, is_stopping
from opdispatch_client.endpoint import THIS_PROCESS, Endpoint
from opdispatch_client.lanes.async_busy_watch import AsyncBusyWatch
from opdispatch_client.lanes.async_direct_local import AsyncDirectLanes
from opdispatch_client.lanes.async_direct_streams import AsyncDirectStreams
from opdispatch_client.lanes.async_to_daemon import AsyncCallLane, AsyncDaemonLane
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_client.lanes.call_plan import UNPLANNED, CallPlans, PlannedArguments
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay
from opdispatch_client.lanes.idle_memory import TEND_SECONDS
from opdispatch_client.lanes.lane_choice import direct_kind
from opdispatch_client.lanes.overdue_replies import OverdueReplies
from opdispatch_client.lanes.planned_memory import PlannedMemory
from opdispatch_client.lanes.routes import Routes, find_refusal
from opdispatch_client.lanes.waiting_calls import WaitingCall, may_move, waiting_call
from opdispatch_client.listings import Interpreter, ServerInfo
from opdispatch_client.operator_call import Call
from opdispatch_client.rpcs import Rpc, reply_by_itself
from opdispatch_client.session_memory import SessionMemory
from opdispatch_wire.errors import DaemonUnavailableError, MessageTooLargeError
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.async_stream import AsyncStream
from opdispatch_wire.lanes.awaited_replies import Reply
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import InterpreterBusyError, LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.shared_memory.peer_memory import is_without_room
from opdispatch_wire.v1 import execution_pb2

Way = DirectWay[AsyncLane] | DirectWay[AsyncStream]
SendWithin = Callable[[Rpc[Any], float | None], Awaitable[Any]]
"""Sends a request and awaits its reply, at most for a number of seconds; None for no limit."""


class AsyncCalls:
    """Sends the calls of one session. For use in its event loop only.

    ``send`` sends a call as a gRPC request of its own; ``introduce`` repeats the handshake with the
    daemon and returns its answer and the message limit; ``list_interpreters`` asks the daemon for
    the state of its interpreters.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        send: SendWithin,
        introduce: Callable[[], Awaitable[tuple[ServerInfo, int]]],
        list_interpreters: Callable[[], Awaitable[list[Interpreter]]],
        loop: OneLoop,
    ) -> None:
        self._endpoint = endpoint
        self._send = send
        self._daemon = AsyncDaemonLane(endpoint, channel, introduce)
        self._loop = loop
        self._busy = AsyncBusyWatch(loop.loop, list_interpreters)
        self.memory = SessionMemory(is_wanted=endpoint.direct, on_use=self._tend_later)
        self._routes = Routes()
        self._direct = AsyncDirectLanes(self.memory, self._routes)
        self._direct_streams = AsyncDirectStreams(endpoint, self._routes)
        self._find_again: Mapping[type, Callable[[Any, Hashable], Way | None]] = {
            AsyncLane: self._direct.find_again,
            AsyncStream: self._direct_streams.find_again,
        }
        self._tending: asyncio.TimerHandle | None = None
        self._plans = CallPlans()
        timeout = None if endpoint.timeout == math.inf else endpoint.timeout
        self._overdue = OverdueReplies(loop.loop, timeout)

    @property
    def lane(self) -> str:
        """The name of the lane to the daemon."""
        return self._daemon.name

    async def open(self, info: ServerInfo, limit: int) -> None:
        """Choose a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if no lane of the kind that the endpoint requires can be
        opened.
        """
        await self._daemon.open(info, limit)

    def close(self) -> None:
        """End all calls, and refuse new ones. Idempotent."""
        self._daemon.close()
        if not self._endpoint.is_of_this_process:
            return
        self._busy.stop()
        self._overdue.stop()
        self._direct.close()
        self._direct_streams.close()
        if self._tending is not None:
            self._tending.cancel()
        self.memory.close()

    async def call(self, call: Call) -> Any:
        """Make a call; return its result, or raise its error."""
        attempt = CallAttempt(call, self._endpoint)
        try:
            self._loop.check()
            return await self._call(attempt, call)
        finally:
            attempt.close()

    async def call_planned(self, operator: str, planned: PlannedArguments) -> Any:
        """Make a call by its plan: see Note [Planned calls].

        Returns UNPLANNED if no plan is valid, with nothing sent. Raises the call's error.
        """
        plan = self._plans.find(planned.key)
        if plan is None or plan.way is None:
            return UNPLANNED
        if (
            asyncio.get_running_loop() is not self._loop.loop
            or self._endpoint.process != THIS_PROCESS.number
        ):
            self._loop.check()  # raises
        way: Way = plan.way
        route = way.route  # as in ``BlockingCalls._find_planned``
        if not route.is_current or len(route.targets) != 1 or not route.within_reach:
            found = self._find_again[type(way.lane)](way, plan.shape)
            if found is None or plan.size > found.lane.max_message_bytes:
                return UNPLANNED
            way = found
        memory, overdue = way.lane.memory, self._overdue
        if memory is not None and memory.released:
            memory.tell_releases()
        peer = None if memory is None else memory.peer
        deadline = None if overdue.seconds is None else time.monotonic() + overdue.seconds
        shared: PlannedMemory | None = None
        encode: Callable[[int], bytes]
        encode = functools.partial(plan.form.write, planned.leaves, overdue.seconds)
        read: Decode = plan.read
        if plan.shares:
            shared = PlannedMemory.of(plan, planned.leaves, overdue.seconds, memory, peer)
            if shared is None:
                return UNPLANNED
            encode, read = shared.encode, shared.read
        try:
            number, future = way.lane.call_plain(encode, read)
        except LaneClosedError:
            return UNPLANNED  # the general path finds another route, or reports why there is none
        waiting = None
        if plan.moves:
            waiting = waiting_call(way)
            waiting.give_up = functools.partial(_give_up, future)
            self._busy.add(waiting)
        overdue.add(future)
        failure: Exception | None = None
        reply: Any = None
        try:
            reply = await future
        except OSError as error:  # TimeoutError and LaneClosedError among them
            failure = error
            if not isinstance(error, LaneClosedError) or isinstance(error, InterpreterBusyError):
                way.lane.cancel(number)
        except BaseException:
            way.lane.cancel(number)
            has_come = future.done() and not future.cancelled() and future.exception() is None
            if memory is not None and has_come:
                _discard(memory, future.result())
            raise
        finally:
            overdue.remove(future)
            if waiting is not None:
                self._busy.remove(waiting)
        if type(reply) is tuple:
            if way.route.waits:
                way.route.note_wait(False)
            return reply[0]
        call = planned.call(operator, retry=self._endpoint.retry)
        if shared is None:
            attempt = CallAttempt.of_planned(
                call, self._endpoint, way, memory, peer, number=number, deadline=deadline
            )
        else:
            attempt = CallAttempt.of_sent(call, self._endpoint, shared.request, shared.memory)
            attempt.deadline = deadline
        try:
            return await self._go_on(attempt, way, failure or reply)
        finally:
            attempt.close()

    async def _go_on(
        self, attempt: CallAttempt, way: Way, outcome: Exception | execution_pb2.CallReply
    ) -> Any:
        """Continue a planned call whose outcome was not a plain reply."""
        if isinstance(outcome, Exception):
            if not isinstance(outcome, LaneClosedError):
                raise self._failure(outcome, attempt) from None
            self._leave(attempt, way, outcome)
        elif (refusal := find_refusal(outcome)) is not None:
            self._leave(attempt, way, refusal)
        else:
            result = attempt.read(outcome)
            way.route.note_wait(outcome.has_waited)
            return result
        return await self._call(attempt, attempt.call, goes_directly=False)

    async def _call(self, attempt: CallAttempt, call: Call, *, goes_directly: bool = True) -> Any:
        try:
            reply = await self._call_directly(attempt) if goes_directly else None
            if reply is None:
                reply = await self._call_daemon(attempt)
                if attempt.request.wants_route:
                    self._routes.learn(call.shape, reply, attempt.route_epoch)
                    if direct_kind(self._endpoint, self._daemon.name) == "stream":
                        self._direct_streams.prepare(call.shape, self._daemon.max_message_bytes)
        except (TimeoutError, LaneClosedError, OSError) as error:
            raise self._failure(error, attempt) from None
        return attempt.read(reply)

    async def _call_daemon(self, attempt: CallAttempt) -> execution_pb2.CallReply:
        """Return the daemon's reply; wait for a daemon that restarts."""
        wait = DaemonWait(self._endpoint.wait, attempt.deadline)
        while True:
            lane = await self._daemon.get(attempt.deadline)
            attempt.prepare(lane.inline_bytes if lane is not None else None)
            try:
                reply: execution_pb2.CallReply
                if lane is None:
                    timeout = attempt.time_left()
                    reply = await self._send(
                        reply_by_itself(attempt.call, attempt.request), timeout
                    )
                else:
                    reply = await _send(lane, attempt)
                why = attempt.find_lost(reply)
                if why is None:
                    return reply
            except (OpdispatchError, LaneClosedError) as error:
                why = attempt.find_lost(error)
                if why is None:
                    raise
            if is_stopping(why):
                self._daemon.leave(lane)
            pause = attempt.pause_before_asking_again(why, wait)
            if self._daemon.is_closed:
                raise self._endpoint.closed_error()
            await asyncio.sleep(pause)

    async def _call_directly(self, attempt: CallAttempt) -> execution_pb2.CallReply | None:
        """Return the reply, or None if the daemon has to be asked."""
        way = await self._find_way(attempt)
        if way is None:
            return None
        why: Exception | None
        try:
            reply = await self._send_directly(way, attempt)
            why = find_refusal(reply)
            if why is None:
                way.route.note_wait(reply.has_waited)
                limit = way.lane.max_message_bytes
                self._plans.learn(attempt.call, attempt.request, way, limit)
                return reply
        except (LaneClosedError, MessageTooLargeError) as error:
            why = error
        self._leave(attempt, way, why)
        return None

    def _leave(self, attempt: CallAttempt, way: Way, why: Exception) -> None:
        """Prepare a call whose direct request failed for the daemon."""
        if isinstance(way.lane, AsyncLane) and is_without_room(why):
            self.memory.refuse(way.lane.memory, why)
        attempt.leave(way, self._routes, why)
        if self._daemon.is_closed:
            raise self._endpoint.closed_error()

    async def _send_directly(self, way: Way, attempt: CallAttempt) -> execution_pb2.CallReply:
        if not may_move(way, attempt.request):
            return await _send(way.lane, attempt)
        waiting = waiting_call(way)
        self._busy.add(waiting)
        try:
            return await _send(way.lane, attempt, waiting)
        finally:
            self._busy.remove(waiting)

    async def _find_way(self, attempt: CallAttempt) -> Way | None:
        """Return a direct route for a call; if none is known, ask the daemon for one."""
        kind = direct_kind(self._endpoint, self._daemon.name)
        if kind is None or (shape := attempt.call.shape) is None:
            return None
        limit = self._daemon.max_message_bytes
        way: Way | RelayedWay | None
        if kind == "local":
            way = await self._direct.find(shape, limit, attempt.deadline)
        else:
            way = self._direct_streams.find(shape, limit)
        if way is None:
            if self._routes.wants(shape):
                attempt.ask_for_route()
            return None
        if isinstance(way, RelayedWay):
            attempt.relay(way, self._routes.relayed)
            return None
        if isinstance(way.lane, AsyncLane):
            attempt.encode(way.lane.memory)
        else:
            attempt.prepare_for_stream(way.lane.inline_bytes)
        way.route.direct(attempt.request)
        return way

    def _tend_later(self) -> None:
        if self._tending is None and not self._daemon.is_closed:
            self._tending = self._loop.loop.call_later(TEND_SECONDS, self._tend)

    def _tend(self) -> None:
        """Release unused shared memory, now and again later while any is in use."""
        self._tending = None
        self._direct.tend()
        self.memory.trim()
        if self.memory.is_in_use:
            self._tend_later()

    def _failure(self, error: Exception, attempt: CallAttempt) -> Exception:
        """Return the exception to raise to the caller for a transport error."""
        if isinstance(error, LaneClosedError | DaemonUnavailableError) and self._daemon.is_closed:
            return self._endpoint.closed_error()
        return attempt.explain(error)


def _discard(memory: CallerLaneMemory, reply: Any) -> None:
    """Discard the reply to a planned call; a decoded one occupies no shared memory."""
    if isinstance(reply, execution_pb2.CallReply):
        memory.discard(reply, None)


async def _send(
    lane: AsyncCallLane, attempt: CallAttempt, waiting: WaitingCall | None = None
) -> execution_pb2.CallReply:
    timeout = attempt.time_left()
    what, memory = attempt.call.what, attempt.memory
    if isinstance(lane, AsyncLane):
        reply = lane.call(attempt.request, what, attempt.tensors, memory=memory)
    else:
        reply = lane.call(attempt.request, what, attempt.tensors)
    if waiting is not None:
        waiting.give_up = functools.partial(_give_up, reply)
    try:
        async with asyncio.timeout(timeout):
            return await reply
    except BaseException:
        lane.cancel(attempt.request.id)
        has_come = reply.done() and not reply.cancelled() and reply.exception() is None
        if memory is not None and has_come:
            memory.finish(reply.result())
        raise


def _give_up(reply: Reply) -> None:
    if not reply.done():
        reply.set_exception(InterpreterBusyError())
        reply.exception()  # marks the error as retrieved: the waiting task may have been cancelled
