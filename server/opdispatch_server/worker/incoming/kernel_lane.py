"""One local lane of an interpreter, whose threads read calls and run their kernels.

Note [The thread that reads a call runs it]
    Waking another thread costs more than a small kernel. So the thread that reads a call also runs
    its kernel, and only then reads the next call. To keep other calls from waiting, the right to
    read (the turn) is handed over to another thread

    - before a kernel of a library whose kernels are slow on average, compared with the time that
      the lane takes to begin a call, if other calls have recently waited for slow kernels: a
      caller that is alone needs no second thread;
    - before a running kernel calls another operator through the daemon, since that call may come
      back over this lane;
    - when kernels that should have been quick have run for PATIENCE, or on a slow machine for as
      long as it takes to begin many calls, up to a tenth of a second. TurnWatch does that, in a
      thread that sleeps while no calls come.

    A thread that has lost the turn finishes its call, and then rests until it gets the turn again.
    Only the thread that has the turn uses ``_reader``, and only while it runs no kernel.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.metrics.client_calls import ClientConnection
from opdispatch_server.serving.reading_turn import ReadingTurn
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.lane_call import LaneCall
from opdispatch_server.worker.incoming.lane_pace import LanePace, patience_on
from opdispatch_server.worker.incoming.lane_replies import LaneReplies, failure, failure_of_run
from opdispatch_server.worker.incoming.planned_run import begin_planned, plan_like, run_planned
from opdispatch_server.worker.incoming.turn_watch import TurnWatch
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.brief_spin import BriefSpin
from opdispatch_wire.lanes.descriptors import ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.frames import Frame, FrameReader
from opdispatch_wire.lanes.lane_memory import MEMORY_FRAMES, CalleeLaneMemory
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, parse_message
from opdispatch_wire.planned_requests import constant_bytes_of
from opdispatch_wire.received_call import read_call
from opdispatch_wire.shared_memory.call_memory import CalleeMemory
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.shared_mapping import is_supported
from opdispatch_wire.shared_memory.tensor_arena import IDLE_SECONDS
from opdispatch_wire.tensors import CalleeTensorMemory
from opdispatch_wire.v1 import execution_pb2, lane_pb2

LOG = logging.getLogger("opdispatch.lane")

# Longest time in seconds that a thread spends on sending the reason why a lane ends.
_LAST_WORDS = 5.0
# Interval in seconds of the checks whether the last calls of a lane are answered.
_LAST_CALLS_LOOK = 0.002


class KernelLane:
    """One connection that brings calls. ``rules`` know it by ``number``.

    ``limit`` is the size of the longest message in bytes. With a ``budget`` for results, memory is
    shared with callers that support it. ``on_end`` is called in any thread, once the connection has
    ended; it must not block.
    """

    def __init__(
        self,
        connection: socket.socket,
        execution: KernelExecution,
        rules: CallRules,
        watch: TurnWatch,
        limit: int,
        number: int,
        on_end: Callable[[KernelLane], None],
        budget: MemoryBudget | None = None,
        client: ClientConnection | None = None,
    ) -> None:
        connection.settimeout(None)
        self._socket = connection
        self._execution = execution
        self._rules = rules
        self._watch = watch
        self._limit = limit
        self._number = number
        # A placeholder for the daemon, which counts its calls itself.
        self._client = client or ClientConnection("")
        self._on_end = on_end
        self._budget = budget
        self._memory: CalleeLaneMemory | None = None  # set in the handshake
        self._descriptors: ReceivedDescriptors | None = None
        self._reader = FrameReader(limit)
        readable = select.poll()
        readable.register(connection, select.POLLIN)
        self._look = functools.partial(readable.poll, 0)
        self._spin = BriefSpin()
        self._writer = FrameWriter(connection)
        self._pace = LanePace()
        self._replies = LaneReplies(self._writer, execution, self._pace)
        self.flush = self._replies.flush
        self._turn = ReadingTurn(
            self._start_thread, self.flush, lambda: patience_on(self._pace.beginning)
        )
        # Calls that wait for others to end, by id. Changed by any thread, one operation at a time.
        self._waiting: dict[int, LaneCall] = {}
        # Calls on the general path without an answer, which a thread of another lane may run.
        # Changed likewise.
        self._unanswered: set[LaneCall] = set()
        self._is_ending = False
        self._is_closed = False

    def start(self) -> None:
        """Begin to serve, in a new thread; if it cannot be started, end the connection."""
        self._watch.add(self._turn)
        try:
            self._start_thread(1)
        except RuntimeError as error:  # no thread: the system's limit is reached
            LOG.warning(
                "ended a connection, because no thread could be started to read it: %s",
                error,
                extra=fields(Event.LANE_CLOSED),
            )
            self._end(1)

    def end_reading(self) -> None:
        """Accept no more from the caller; the connection ends after the calls already sent."""
        self._is_ending = True  # before the thread that reads sees the end
        # The caller's next call then fails while it is sent, so it is known not to have started.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """End the connection; kernels that still run lose their replies. Idempotent."""
        self._is_closed = True
        self._watch.remove(self._turn)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._turn.close()
        if self._memory is not None:
            self._memory.close()

    def trim(self) -> None:
        """Return shared memory that has been idle for a while to the system."""
        if self._memory is not None:
            self._memory.trim(IDLE_SECONDS)
            self.flush()

    # -- the threads ----------------------------------------------------------------------------

    def _start_thread(self, turn: int) -> None:
        threading.Thread(target=self._work, args=(turn,), name="kernel-lane", daemon=True).start()

    def _work(self, turn: int | None) -> None:
        try:
            if turn == 1:
                self._shake_hands()
            while turn is not None:
                self._turn.become_mine(turn)
                self._serve(turn)
                turn = self._turn.rest()
        except OpdispatchError as error:
            LOG.warning("closed a lane: %s", error, extra=fields(Event.LANE_CLOSED))
            self._writer.put(FrameKind.REFUSAL, lane_messages.refusal(error))
            # Flushing is not enough: another thread may be writing a reply, and ``_end`` would
            # close the connection before that thread gets to the refusal.
            self._writer.finish(_LAST_WORDS)
            self._end(turn)
        except (EOFError, OSError):
            if self._is_ending:
                self._wait_for_last_calls()
            self._end(turn)
        except BaseException:
            LOG.exception("closed a lane after an internal error", extra=fields(Event.LANE_CLOSED))
            self._end(turn)

    def _wait_for_last_calls(self) -> None:
        """Wait until the calls that were sent before ``end_reading`` are answered, or ``close``."""
        while (self._unanswered or self._turn.away) and not self._is_closed:
            time.sleep(_LAST_CALLS_LOOK)

    def _end(self, turn: int | None) -> None:
        self.close()
        # Only the thread that reads may close the descriptors, since it uses them. ``close`` has
        # ended the turns, so no other thread will read.
        if turn is not None and self._turn.is_at(turn):
            self._writer.close()
            if self._memory is not None:
                self._memory.descriptors.close()
        self._on_end(self)

    def _shake_hands(self) -> None:
        self._socket.settimeout(lane_messages.HANDSHAKE_TIMEOUT)
        told = lane_messages.read_hello(self._next_frame())
        told_limit = max(told.max_message_bytes, told.max_call_bytes)
        self._replies.limit = told_limit or MAX_MESSAGE_BYTES_HIGHEST
        self._socket.settimeout(None)
        shares = self._budget is not None and told.shares_memory and is_supported()
        if self._budget is not None and shares:
            self._memory = CalleeLaneMemory(self._writer.put, self._budget)
            self._replies.memory = self._memory
            self._descriptors = self._memory.descriptors
        welcome = lane_messages.welcome(self._limit, self._number, shares_memory=shares)
        self._writer.put(FrameKind.WELCOME, welcome)

    def _serve(self, turn: int) -> None:
        """Read and run calls while this thread has the turn.

        Raises EOFError, OSError or WireError when the connection ends.
        """
        while self._turn.number == turn:  # ``is_at``, inlined
            kind, payload = self._next_frame()
            if kind is FrameKind.CALL:
                self._client.calls += 1
                if self._take_planned(payload, turn):
                    continue
                planned = b""
                if isinstance(payload, bytes) and constant_bytes_of(payload):
                    planned = payload
                call = self._read(payload)
                del payload  # so that its memory can be freed tensor by tensor
                if call is not None:
                    self._take(*call, turn)
                    if planned:
                        self._plan(planned, call[0])
                del call  # the next one may come much later
            elif kind is FrameKind.CANCEL:
                cancel = lane_pb2.LaneCancel()
                parse_message(cancel, payload)
                if (waiting := self._waiting.get(cancel.id)) is not None:
                    waiting.is_cancelled = True
            elif self._memory is not None and kind in MEMORY_FRAMES:
                self._memory.take(kind, payload)
            else:
                raise WireError(f"received a {kind.name} frame; expected CALL or CANCEL")

    def _read(
        self, payload: bytes | memoryview
    ) -> tuple[execution_pb2.CallRequest, CalleeTensors] | None:
        """Parse a call; reply to it and return None if it is refused."""
        # With shared memory, tensors that are inline nevertheless are rare, and are not detached.
        request, arguments, refusal = read_call(payload, detaches=self._memory is None)
        if refusal is not None:
            self._replies.send(failure(request, refusal))
            return None
        limited, size = not request.chunks_reply, len(payload)
        return request, CalleeTensors([*arguments], size, is_limited=limited)

    def _plan(self, payload: bytes, request: execution_pb2.CallRequest) -> None:
        """Plan calls like one that has just run and declared its constant bytes."""
        self.flush()
        plan_like(self._execution, self._rules, payload, request)

    def _take_planned(self, payload: bytes | memoryview, turn: int) -> bool:
        """Run a planned call and reply; return False if it has to take the general path."""
        came = time.monotonic()
        plans = self._rules.plans
        if plans is None or not isinstance(payload, bytes):
            return False
        found = plans.find(payload)
        if found is None:
            return False
        plan, received = found
        if plan.layout.shared and self._memory is None:
            return False  # the caller shares no memory either: the general path refuses the call
        turns: LibraryTurns[LaneCall] = plan.library.turns
        run = begin_planned(self._execution, self._rules, self._number, plan, received)
        if run is None:
            return False
        if self._pace.company:
            self._hand_over_if_slow(turns, turn)
        run.began = began = time.monotonic()
        self._pace.note_beginning(began - came)
        self._turn.begin_kernel(turn, began)
        if not self._watch.is_awake:
            self._watch.notice()
        has_ended, following = False, None
        try:
            if self._is_closed:
                has_ended, following = True, turns.end()
            else:
                reply, memory = run_planned(
                    self._execution,
                    plan,
                    received,
                    payload,
                    run,
                    self._replies.limit,
                    self._memory,
                )
                # Before the reply, so that the caller's next call finds the library's turn free.
                has_ended, following = True, turns.end(time.monotonic() - began)
                # Also before the reply, because the caller may call again as soon as it has it.
                if following is None:
                    self._turn.end_kernels(turn)
                    if turns.seconds > self._pace.slow:
                        self._note_company(turn)
                if (
                    isinstance(memory, CalleeMemory)
                    and isinstance(reply, bytes)
                    and self._memory is not None
                    and not self._memory.end_planned(memory)
                ):
                    reply = execution_pb2.CallReply.FromString(reply)  # ``send_with`` changes it
                if not isinstance(reply, bytes):
                    self._replies.send_with(reply, memory)
                    # The thread that reads now may have looked for frames before this was put.
                    if self._turn.number != turn:
                        self.flush()
                else:
                    if self._memory is not None and self._memory.released:
                        self._memory.tell_releases()
                    # Wait for further replies to send together if more calls have been received.
                    if self._turn.number == turn and self._reader.is_ahead:
                        self._replies.put(reply)
                    else:
                        self._writer.write(FrameKind.REPLY, reply)
        except BaseException:
            # The lane ends, but calls of other lanes may wait for this turn.
            _pass_turn_on(turns, following if has_ended else turns.end())
            raise
        finally:
            self._rules.end_run(run)
        if following is not None:
            self._go_on(following, turns, turn)
            self._turn.end_kernels(turn)
        return True

    def _hand_over_if_slow(self, turns: LibraryTurns[LaneCall] | None, turn: int) -> None:
        """Hand the turn to another thread before a kernel that would keep other calls waiting."""
        if turns is not None:
            if not self._pace.company or turns.seconds <= self._pace.slow:
                return
            self._pace.company -= 1
        self._turn.hand_over(turn)

    def _note_company(self, turn: int) -> None:
        """Note if a call has arrived while a slow kernel ran in the thread that reads."""
        # Called after ``end_kernels``, when no other thread takes the turn away. Only the thread
        # that has it may use the reader.
        if self._turn.number == turn and (self._reader.is_ahead or self._look()):
            self._pace.note_company()

    def _go_on(self, call: Any, turns: LibraryTurns[LaneCall], turn: int) -> None:
        """Run the call that waited for the one that has ended."""
        if isinstance(call, LaneCall):
            self._work_off(call, turns, turns, turn)
        else:
            turns.start(call)  # a call of another source, which starts its own thread

    def _take(self, request: execution_pb2.CallRequest, tensors: CalleeTensors, turn: int) -> None:
        """Run a call, and those that wait for it to end; or queue it if its turn has not come."""
        came = time.monotonic()
        try:
            call = LaneCall(self, request, self._rules.admit(self._number, request), tensors)
        except OpdispatchError as error:
            self._replies.send(failure(request, error))
            return
        self._unanswered.add(call)
        turns: LibraryTurns[LaneCall] | None = None
        try:
            if request.HasField("kernel"):
                turns = self._execution.turns_of(request.kernel.load_id)
            # Nested calls take no turn, since the calls that made them hold one.
            ordered = turns if call.context.lane else None
            # Before the turn to read is handed over, so that calls begin in their order of arrival.
            if ordered is not None and not self._begin_turn(call, ordered):
                return
        except OpdispatchError as error:
            self._rules.end(call.context)
            self._replies.send(failure(request, error))
            self._unanswered.discard(call)
            return
        self._hand_over_if_slow(turns, turn)
        self._pace.note_beginning(time.monotonic() - came)
        self._work_off(call, turns, ordered, turn)
        self._turn.end_kernels(turn)
        if turns is not None and turns.seconds > self._pace.slow:
            self._note_company(turn)

    def start_call(self, call: LaneCall, turns: LibraryTurns[LaneCall]) -> None:
        """Run a call whose turn has come, and those that wait for it to end, in a new thread."""
        threading.Thread(
            target=self._work_off, args=(call, turns, turns, 0), name="kernel-lane", daemon=True
        ).start()

    def refuse_call(self, call: LaneCall, error: OpdispatchError) -> None:
        """Reply with ``error`` to a call that waited for its turn and will never start."""
        self._waiting.pop(call.request.id, None)
        self._rules.end(call.context)
        self._replies.send(failure(call.request, error))
        self.end_call(call)

    def end_call(self, call: LaneCall) -> None:
        """Send the buffered replies, that of the call among them, and forget the call."""
        self.flush()
        self._unanswered.discard(call)

    def _work_off(
        self,
        call: LaneCall,
        turns: LibraryTurns[LaneCall] | None,
        ordered: LibraryTurns[LaneCall] | None,
        turn: int,
    ) -> None:
        following: LaneCall | None = call
        while following is not None:
            began = time.monotonic()
            self._turn.begin_kernel(turn, began)
            self._watch.notice()
            try:
                following.lane.answer_call(following)
            except BaseException:
                if ordered is not None:
                    _pass_turn_on(ordered, ordered.end())
                raise
            if turns is not None:
                turns.note(time.monotonic() - began)
            if following.lane is self and self._turn.is_at(turn):
                self._unanswered.discard(following)  # this thread flushes before it reads
            else:
                following.lane.end_call(following)
            following = ordered.end() if ordered is not None else None
            if following is not None and not isinstance(following, LaneCall):
                ordered.start(following)  # a call of another source, which starts its own thread
                return

    def _begin_turn(self, call: LaneCall, turns: LibraryTurns[LaneCall]) -> bool:
        """Begin the call's turn and return True, or queue it and return False.

        Raises QueueFullError.
        """
        number = call.request.id
        # Before ``begin``, because another thread may start the queued call at once, which
        # removes it from ``_waiting``.
        self._waiting[number] = call
        may_run = True
        try:
            may_run = turns.begin(call, call.context.limit, self._rules.room)
        finally:
            if may_run:
                self._waiting.pop(number, None)
        return may_run

    def answer_call(self, call: LaneCall) -> None:
        """Run a call and reply, unless it was cancelled."""
        # From here on, a cancellation comes too late.
        self._waiting.pop(call.request.id, None)
        try:
            if self._is_closed:
                return
            if call.is_cancelled:
                if self._memory is not None:  # the caller needs a reply to reuse its memory
                    error = RefusedError("the call was cancelled before it started")
                    self._replies.send(failure(call.request, error))
                return
            self._rules.begin(call.context)
            if call.waits_since:
                call.context.queued += time.monotonic_ns() - call.waits_since
            memory = call.tensors if self._memory is None else self._memory.new_call()
            self._replies.send_with(self._run(call, memory), memory)
        finally:
            self._rules.end(call.context)

    def _run(self, call: LaneCall, memory: CalleeTensorMemory | None) -> execution_pb2.CallReply:
        try:
            reply = GUARD.run(self._execution.run, call.request, call.context, memory)
            reply.has_waited = call.waits_since > 0
            return reply
        except BaseException as error:  # a call is always answered
            return failure_of_run(call.request, error)

    # -- the connection -------------------------------------------------------------------------

    def _next_frame(self) -> Frame:
        while True:
            if self._reader.is_ahead and (frame := self._reader.next_frame()) is not None:
                return frame
            if self._writer.frames:
                self.flush()
            if self._writer.is_stuck:
                self._writer.wait_for_room()
            receive = self._reader.receive
            frame = self._spin.wait(self._look, receive, self._socket, self._descriptors)
            if frame is not None:
                return frame


def _pass_turn_on(turns: LibraryTurns[Any], following: Any) -> None:
    """Start the following call, if there is one, in another thread."""
    if following is not None:
        turns.start(following)
