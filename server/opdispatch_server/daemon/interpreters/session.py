"""One connected interpreter: its instructions, its calls, its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_server.blame.flight_record import KERNEL, FlightRecord, Subject
from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.interpreters.forwarded_call import prepare_call
from opdispatch_server.daemon.interpreters.heartbeat_lease import Lease
from opdispatch_server.daemon.interpreters.own_address import OwnAddress
from opdispatch_server.daemon.interpreters.session_end import UNEXPLAINED, SessionEnd
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool
from opdispatch_server.internal_message_limit import internal_message_limit
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.process_watch import ProcessEnd, describe_exit
from opdispatch_wire.channel import channel_options
from opdispatch_wire.credentials import shown_ticket
from opdispatch_wire.errors import DeadlineExceededError, InterpreterDiedError
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.async_stream import AsyncStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2

LOG = logging.getLogger("opdispatch.interpreters")

# How long replies already on their way may take to arrive after a session ends.
LAST_REPLIES_WAIT = 2.0
# How long after the end of its lane an interpreter may give a better reason for its end.
LANE_END_WAIT = 0.2
# How long to wait for a better reason than UNEXPLAINED.
EXPLANATION_WAIT = 0.4

InterpreterLane = AsyncLane | AsyncStream
"""The connection that carries an interpreter's calls: a local lane, or one over gRPC."""

_NUMBERS = itertools.count(secrets.randbits(62))


class InterpreterSession:
    """One live interpreter. For use in the event loop only."""

    def __init__(
        self,
        hello: interpreter_pb2.Hello,
        name: str,
        *,
        supervised: bool,
        max_message_bytes: int,
        pool: InterpreterPool | None = None,
        lease: Lease | None = None,
        direct_lane: str = "",
        flight_record: FlightRecord | None = None,
        own_address: OwnAddress | None = None,
    ) -> None:
        self.name = name
        self.pid = hello.pid
        self.process_space = hello.process_space
        self.lease = lease  # None: it sends no heartbeats
        # The record of its running kernels; None if its memory is not accessible.
        self.flight_record = flight_record
        # Why it serves no calls at the moment, though alive: a kernel holds its interpreter lock.
        self.busy = ""
        # The libraries whose kernels hold the lock.
        self.busy_with: frozenset[str] = frozenset()
        self.busy_operators: frozenset[str] = frozenset()
        # Why it is about to be replaced.
        self.unfit = ""
        self._found_sound_at = time.monotonic()
        self.address = hello.address
        # The daemon reaches it by a unix path, so they share files.
        self.shares_files = hello.address.startswith("unix:")
        # Where clients can reach it directly; "" if they cannot.
        self.direct_lane = direct_lane
        self.direct_ports: tuple[int, ...] = ()  # gRPC ports on the daemon's host for direct calls
        self.number = next(_NUMBERS)
        """Unique among all sessions, of this daemon and of others."""
        # Called with a direct call whose kernel has run too long.
        self.on_overdue: Callable[[InterpreterSession, interpreter_pb2.OverdueCall], None]
        self.on_overdue = lambda session, call: None
        # Called with the counts of calls that kernels failed, by whichever path they came.
        self.on_kernel_errors: Callable[[interpreter_pb2.KernelErrors], None] = lambda errors: None
        self.kernel_errors_total = 0
        # Called with each heartbeat.
        self.on_heartbeat: Callable[[InterpreterSession], None] = lambda session: None
        # Called once, with the reason, when it can no longer run kernels properly.
        self.on_unfit: Callable[[InterpreterSession, str], None] = lambda session, problem: None
        self.python_version = hello.python_version
        self.devices = tuple(hello.devices) or ("cpu",)
        self.supervised = supervised
        # Only libraries of this pool are loaded into it; None: any that needs no pool.
        self.pool = pool
        # Its end is intended, not an accident.
        self.dismissed = False
        self.connected_at = datetime.now(UTC)
        self.ready = False  # has all publications, and may be given libraries
        self.loading = False  # reserved for one import, from its choice to its publication
        self.importing = ""  # the version whose code is being imported, if any
        # Calls that the daemon has sent.
        self.calls_in_flight = 0
        self.calls_total = 0
        # The last heartbeat, which counts the calls that clients have sent directly.
        self.heartbeat = interpreter_pb2.Heartbeat()
        self.ended = asyncio.Event()
        # The reason and cause of its end, also sent to the interpreter.
        self.why_ended = SessionEnd(name, hello.pid)
        self._cause: Cause | None = None
        self.named: Subject | None = None
        """The subject because of which the daemon ended the session, if any."""
        self.silence_at_end = 0.0
        self.cut_off: list[Subject] = []
        """The daemon's calls that had no reply."""
        self.verdict: Verdict | None = None
        """The verdict on its end; None until judged."""
        self._how: ProcessEnd | None = None
        self._process_ended = asyncio.Event()
        self.goodbye: interpreter_pb2.Goodbye | None = None
        # Whether replies may still arrive: a hung process sends none.
        self._replies_may_come = True
        self._at_end: list[Callable[[], None]] = []
        self._instruction_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[interpreter_pb2.InterpreterMessage]] = {}
        # Messages, or serialized messages.
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        limit = internal_message_limit(max_message_bytes)
        self.own = own_address or OwnAddress(self.address)
        """The address and credentials for calling it."""
        options = channel_options(limit, address=self.address)
        self._channel = self.own.credentials.asyncio_channel(self.address, options)
        self._limit = limit
        # The lane for calls; None until it has joined.
        self._lane: InterpreterLane | None = None
        self.lane_path = ""  # the path of its local lane, if calls use one

    @property
    def alive(self) -> bool:
        """Whether the session is still open."""
        return not self.ended.is_set()

    @property
    def is_fit(self) -> bool:
        """Whether it can serve calls at the moment."""
        return not self.ended.is_set() and not self.busy and not self.unfit

    @property
    def beat(self) -> float:
        """When it last recorded a heartbeat in shared memory; 0: never."""
        return self.flight_record.beat if self.flight_record is not None else 0.0

    @property
    def sound_at(self) -> float:
        """When it was last known to be healthy, as a time of ``time.monotonic``."""
        return max(self._found_sound_at, self.beat)

    @property
    def has_calls(self) -> bool:
        """Whether calls are running in it, as far as the daemon knows."""
        return bool(self.calls_in_flight or self.heartbeat.direct_calls_in_flight)

    @property
    def cause(self) -> Cause:
        """The cause of its end, as far as known."""
        if self._cause is not None:
            return self._cause
        if self.dismissed:
            return Cause.ORDERLY
        how = self._how
        if how is None or not how.by_itself:
            return Cause.KILLED
        is_orderly = how == describe_exit(0) and not self.cut_off
        return Cause.ORDERLY if is_orderly else Cause.CRASHED

    def post(
        self, message: interpreter_pb2.DaemonMessage, more: bytes = b""
    ) -> asyncio.Future[interpreter_pb2.InterpreterMessage]:
        """Post one instruction; return the future of its answer, or of InterpreterDiedError.

        Instructions are received and carried out in the order of these calls. ``more`` is a
        serialized message with further fields, for long content sent to several interpreters.
        Raises InterpreterDiedError.
        """
        if not self.alive:
            raise self.death()
        number = message.instruction_id = next(self._instruction_ids)
        answer: asyncio.Future[interpreter_pb2.InterpreterMessage] = (
            asyncio.get_running_loop().create_future()
        )
        self._answers[number] = answer
        answer.add_done_callback(lambda _: self._answers.pop(number, None))
        self._outbox.put_nowait(message.SerializeToString() + more if more else message)
        if self.lease is not None and self.flight_record is None and message.HasField("stage"):
            # An import runs user code, which may hold the interpreter lock for long; it has a
            # timeout of its own. If the flight record is visible, it tells who holds the lock.
            patience = ExitStack()
            patience.enter_context(self.lease.suspended())
            answer.add_done_callback(lambda _: patience.close())
        return answer

    async def instruct(
        self, message: interpreter_pb2.DaemonMessage, *, timeout: float
    ) -> interpreter_pb2.InterpreterMessage:
        """Post one instruction, and wait for its answer.

        Raises the error that the interpreter answers with, InterpreterDiedError, or
        DeadlineExceededError: then the outcome is unknown.
        """
        try:
            reply = await asyncio.wait_for(self.post(message), timeout)
        except TimeoutError as error:
            raise self.silence(message, timeout) from error
        return checked_answer(reply)

    async def wait_for_direct_calls(self, load_id: int) -> None:
        """Wait until it runs no direct call of a library, or has ended."""
        if self.direct_lane and self.alive:
            wait = interpreter_pb2.AwaitDirectCalls(load_id=load_id)
            with contextlib.suppress(InterpreterDiedError):
                await self.post(interpreter_pb2.DaemonMessage(await_direct_calls=wait))

    def silence(
        self, message: interpreter_pb2.DaemonMessage, timeout: float
    ) -> DeadlineExceededError:
        """Return the error for an instruction that was not answered in time."""
        return DeadlineExceededError(
            f"interpreter {self.name} did not answer a {message.WhichOneof('kind')} "
            f"instruction within {timeout:g} s",
            interpreter=self.name,
        )

    def tell(self, message: interpreter_pb2.DaemonMessage) -> None:
        """Send a message that needs no answer, if the interpreter is still connected."""
        if self.alive:
            self._outbox.put_nowait(message)

    async def open_lane(self, path: str) -> None:
        """Open the lane for calls.

        Uses the local lane at ``path`` if it can be reached, otherwise a stream. The session ends
        if neither works.
        """
        if path:
            try:
                # Large tensors of streams use this channel; everything else has passed a limit
                # already.
                self._take_lane(await AsyncLane.connect(path, MAX_MESSAGE_BYTES_HIGHEST))
            except (OSError, TimeoutError, OpdispatchError) as error:
                LOG.warning(
                    "interpreter %s is called over gRPC: %s",
                    self.name,
                    error,
                    extra=fields(Event.LANE_SLOW, interpreter=self.name),
                )
            else:
                self.lane_path = path
                return
        try:
            self._take_lane(
                await AsyncStream.open(self._channel, self._limit, shown_ticket(self.own.ticket))
            )
        except LaneClosedError as error:
            self.end(f"the daemon cannot call it at {self.address}: {error}")

    def _take_lane(self, lane: InterpreterLane) -> None:
        if not self.alive:
            lane.close()
            return
        self._lane = lane
        lane.ended.add_done_callback(self._lane_ended)

    def call(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> asyncio.Future[execution_pb2.CallReply]:
        """Run a kernel in the interpreter, without a timeout; the reply may be an error.

        The future may raise LaneClosedError. Raises MessageTooLargeError and LaneClosedError.
        """
        lane = self._joined_lane()
        prepare_call(request, context, self.name)
        reply = lane.call(request, f"the call of {request.operator}", context.tensors)
        self._note_begun()
        reply.add_done_callback(self._call_ended)
        return reply

    @property
    def has_lane(self) -> bool:
        """Whether ``call_then`` can be used."""
        return self._lane is not None and not self._lane.is_closed

    def call_then(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        on_reply: Callable[[execution_pb2.CallReply | LaneClosedError], None],
    ) -> None:
        """Send a call; ``on_reply`` is called as soon as the reply is read."""
        prepare_call(request, context, self.name)
        what, end = f"the call of {request.operator}", self._ending(on_reply)
        self._joined_lane().call_then(request, what, end, context.tensors)
        self._note_begun()

    def call_planned(
        self, encode: Callable[[int], bytes], decode: Decode, on_reply: Callable[[Any], None]
    ) -> int:
        """Send a call like ``AsyncLane.call_plain_then``."""
        number = self._joined_lane().call_plain_then(encode, decode, self._ending(on_reply))
        self._note_begun()
        return number

    def _ending(self, on_reply: Callable[[Any], None]) -> Callable[[Any], None]:
        def end(result: Any) -> None:
            self.calls_in_flight -= 1
            on_reply(result)

        return end

    def _note_begun(self) -> None:
        self.calls_in_flight += 1
        self.calls_total += 1

    def _joined_lane(self) -> InterpreterLane:
        if self._lane is None:
            raise LaneClosedError("it has not joined yet", was_sent=False)
        return self._lane

    def _call_ended(self, reply: asyncio.Future[execution_pb2.CallReply]) -> None:
        self.calls_in_flight -= 1

    @property
    def reason(self) -> str:
        """The reason of its end, for messages."""
        return self.why_ended.reason

    def death(self, what: str = "", **facts: str) -> InterpreterDiedError:
        """Return the error for work that was running in, or meant for, this ended interpreter."""
        return self.why_ended.error(what, **facts)

    def end(
        self,
        reason: str,
        *,
        cause: Cause | None = None,
        named: Subject | None = None,
        come_back: bool = False,
        hung: bool = False,
    ) -> None:
        """End the session: tasks that wait for the interpreter get an error. Idempotent.

        ``cause`` and ``named`` are to blame if the end of the process does not tell more.
        ``come_back`` permits the interpreter to connect again; ``hung`` means that it can no longer
        send anything.
        """
        if not self.alive:
            return
        self.why_ended.reason = reason
        self._cause, self.named = cause, named or self.named
        if self.lease is not None:
            self.lease.renew(self.beat)
            self.silence_at_end = self.lease.silence_at(time.monotonic())
        self._replies_may_come = not hung
        self.goodbye = interpreter_pb2.Goodbye(reason=reason, come_back=come_back)
        self.ended.set()
        self._outbox.put_nowait(interpreter_pb2.DaemonMessage(goodbye=self.goodbye))
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(self.death())
                answer.exception()  # marks an error as retrieved that may not be awaited
        # breaks cycles: some callbacks refer to the session
        callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback()

    async def explain_end(self) -> None:
        """Wait briefly until the session has ended and the reason is known.

        The end of a connection is often the first sign that a process has ended; only the system
        knows whether the process ended by itself.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXPLANATION_WAIT):
                await self.ended.wait()
                if self.supervised and not self.dismissed:
                    await self._process_ended.wait()

    def end_with_process(self, how: ProcessEnd) -> None:
        """End the session of a process that has ended.

        A session that has ended already learns why.
        """
        if not self._process_ended.is_set():
            self._process_ended.set()
            self._how = how
            self.why_ended.by_itself = how.by_itself
            if self.reason == UNEXPLAINED:
                self.why_ended.reason = f"its process {how}"
        self.end(f"its process {how}")

    def note_unfit(self, problem: str, suspect: str = "") -> None:
        """Record, once, the problem that makes it unfit, and the operator that ran last."""
        if self.alive and not self.unfit:
            self.unfit = problem
            if suspect:
                self.named = Subject(KERNEL, "", suspect)
            self.on_unfit(self, problem)

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the session ends, or now if it has ended."""
        if self.alive:
            self._at_end.append(callback)
        else:
            callback()

    async def close(self) -> None:
        """Close the lane for calls, after a pause for the last replies."""
        grace = LAST_REPLIES_WAIT if self._replies_may_come else None
        if self._lane is not None:
            if grace is not None:
                await asyncio.wait([self._lane.ended], timeout=grace)
            self._lane.close()
        await self._channel.close(grace)

    def _lane_ended(self, ended: asyncio.Future[Exception | None]) -> None:
        """End a session whose lane has ended: it can no longer be called, and has usually died."""
        error = ended.result()
        reason = f"its lane of calls ended: {error}" if error else "its lane of calls ended"
        # If its process has ended, a better reason arrives in a moment.
        asyncio.get_running_loop().call_later(LANE_END_WAIT, self.end, reason)

    # -- the stream, served by the servicer -----------------------------------------------------

    async def write_to(self, context: SessionContext) -> None:
        """Send instructions as they are posted and, when the session has ended, the reason."""
        while True:
            message = await self._outbox.get()
            if self.goodbye is not None:
                break  # the instructions left in the outbox are no longer awaited
            await context.write(message)
        await context.write(interpreter_pb2.DaemonMessage(goodbye=self.goodbye))

    async def read_from(self, context: SessionContext) -> None:
        """Take answers until the interpreter closes its side."""
        while True:
            message = await context.read()
            if not isinstance(message, interpreter_pb2.InterpreterMessage):
                return  # grpc.aio.EOF
            if self.lease is not None:
                self.lease.renew(time.monotonic())
            if message.HasField("overdue"):
                self.on_overdue(self, message.overdue)
            elif message.HasField("kernel_errors"):
                self.kernel_errors_total += sum(c.count for c in message.kernel_errors.counts)
                self.on_kernel_errors(message.kernel_errors)
            elif message.HasField("heartbeat"):
                self.heartbeat = message.heartbeat
                self.on_heartbeat(self)
                if not message.heartbeat.problem:
                    self._found_sound_at = time.monotonic()
                else:
                    self.note_unfit(message.heartbeat.problem, message.heartbeat.suspect)
            elif message.HasField("direct_ports"):
                self.direct_ports = tuple(message.direct_ports.ports)
            answer = self._answers.get(message.instruction_id)
            if answer is not None and not answer.done():
                answer.set_result(message)


def checked_answer(
    reply: interpreter_pb2.InterpreterMessage,
) -> interpreter_pb2.InterpreterMessage:
    """Return the answer to an instruction; raise the error that it carries."""
    if reply.HasField("failed"):
        raise error_from_status(reply.failed)
    return reply


SessionContext = grpc.aio.ServicerContext[
    interpreter_pb2.InterpreterMessage, interpreter_pb2.DaemonMessage
]
