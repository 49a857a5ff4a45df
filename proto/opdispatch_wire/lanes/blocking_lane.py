"""The calling side of a local lane for threads that wait.

See Note [Who reads a shared lane] in ``shared_reading``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import time
from collections.abc import Callable
from typing import Any

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages, lane_socket
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import COPIED_AT_MOST, FramePayload
from opdispatch_wire.lanes.lane_memory import MEMORY_FRAMES, CallerLaneMemory, Put
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.lane_tensors import TensorLane
from opdispatch_wire.lanes.patient_wait import ASK_SECONDS, Watch, wait_watched
from opdispatch_wire.lanes.pending_calls import Decode, OnDone
from opdispatch_wire.lanes.shared_reading import SharedReading, Waiter
from opdispatch_wire.lanes.sleeper import wake
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.status import no_thread_left_error
from opdispatch_wire.v1 import execution_pb2, lane_pb2

_ID_TAG = 0x08
_LONGEST_ID = 11

# How long ``tend`` looks for frames: no further than the socket.
_MOMENT = 0.001


class BlockingLane(SharedReading, TensorLane):
    """One lane that any number of threads share."""

    def __init__(self, connection: socket.socket, limit: int, reply_limit: int) -> None:
        SharedReading.__init__(self, connection, reply_limit)
        TensorLane.__init__(self, limit)
        self._numbers = itertools.count(1)
        self.number = 0
        """Number of this connection at the other side."""

    @classmethod
    def connect(
        cls,
        path: str,
        limit: int,
        share: Callable[[Put], CallerLaneMemory] | None = None,
        *,
        call_limit: int = 0,
        patience: float = lane_messages.HANDSHAKE_TIMEOUT,
    ) -> BlockingLane:
        """Connect and shake hands.

        Take replies of at most ``limit`` bytes, or as many as ``call_limit`` with their large
        tensors. The other side has ``patience`` seconds for that.

        With ``share``, memory is shared if the other side does so, too. Raises OSError,
        LaneClosedError, RefusedError, the error of a REFUSAL, and WireError.
        """
        deadline = time.monotonic() + patience
        connection = lane_socket.connect(path, patience)
        lane = cls(connection, limit, max(limit, call_limit))
        try:
            hello = lane_messages.hello(
                limit, max_call_bytes=call_limit, shares_memory=share is not None
            )
            lane._write(FrameKind.HELLO, hello)
            welcome = lane_messages.read_welcome(lane._connection.read_frame(deadline))
            lane._tensors.welcomed(limit, welcome)
            lane.number = welcome.lane
            if share is not None and welcome.shares_memory:
                memory = lane.memory = lane._tensors.memory = share(lane._connection.put)
                lane._connection.descriptors = memory.descriptors
        except BaseException:
            lane.close()
            raise
        return lane

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""
        # Without a waiting thread the other side's end is not read.
        return self._is_closed or not (
            self._waiting or self._pending.calls or not self._has_been_left()
        )

    is_connected = True
    """Whether it ends with the connection that it has."""

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""
        return len(self._waiting) + len(self._pending.calls)

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        memory: CallerMemory | None = None,
        tensors: CallTensors | None = None,
        watch: Watch | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call, with an id of its own, and wait for the reply, which may be an error.

        While that takes its time, ``watch`` says now and then whether it is given up; then
        InterpreterBusyError is raised, and the call is cancelled.

        Tensors of it are in ``memory``, which is the caller's again with the reply; or the large
        ones of both in ``tensors``, which are sent from where they are.
        Raises MessageTooLargeError, which says ``what`` is; TimeoutError, LaneClosedError, and
        WireError for a reply that is none. Whatever ends the wait, such as Ctrl-C, cancels the
        call.
        """
        deadline = None if timeout is None else time.monotonic() + timeout

        def encode(number: int) -> FramePayload:
            request.id = number
            return self._tensors.begin(request, what, memory, tensors)

        reply: execution_pb2.CallReply = self.exchange(encode, deadline, watch)
        self._tensors.forget(reply.id)
        return reply

    def exchange(
        self,
        encode: Callable[[int], FramePayload],
        deadline: float | None,
        watch: Watch | None,
        decode: Decode | None = None,
    ) -> Any:
        """Exchange a call like ``call``, with the request that ``encode`` makes for its id.

        Return what ``decode`` makes of the reply, or else the message. A LaneClosedError says
        the id.
        """
        number = next(self._numbers)
        waiter = Waiter()
        waiter.number, waiter.decode = number, decode
        is_sent = reads = False
        try:
            payload = encode(number)
            with self._mutex:
                if self._is_closed:
                    raise LaneClosedError("the lane is closed", was_sent=False)
                # Before the request is written: whichever thread reads may have the reply before
                # this one waits.
                self._waiting[number] = waiter
                # Replies of others would wait for a large request to be written.
                if not self._reader_is_chosen and len(payload) <= COPIED_AT_MOST:
                    self._reader_is_chosen = reads = True
            is_sent = True
            self._connection.write(FrameKind.CALL, payload)
            # The watch begins after a while; few calls take so long.
            until = deadline
            if watch is not None:
                until = time.monotonic() + ASK_SECONDS
                if deadline is not None and deadline <= until:
                    until, watch = deadline, None
            may_read, reads = reads, False  # ``_wait`` passes the right on
            try:
                self._wait(waiter, until, may_read)
            except TimeoutError:
                if watch is None:
                    raise
                wait_watched(watch, functools.partial(self._wait, waiter), deadline)
        except BaseException as error:
            if reads:
                self._choose_reader()
            # Of the subclass InterpreterBusyError, the lane is still there.
            if is_sent and type(error) is not LaneClosedError and waiter.reply is None:
                self._send_cancel(number)
            self._leave(number)
            # It may have just come; a result that was decoded is in no memory.
            if self.memory is not None and isinstance(waiter.reply, execution_pb2.CallReply):
                self.memory.discard(waiter.reply, None)
            if isinstance(error, LaneClosedError):
                error.call = number
            raise
        if number in self._waiting:
            with self._mutex:
                del self._waiting[number]
        if self._is_closed:
            self._close_if_unused()
        return waiter.reply

    def begin(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        on_done: OnDone,
        memory: CallerMemory | None = None,
        tensors: CallTensors | None = None,
    ) -> int:
        """Begin a call, which is sent with the next ``flush``, and return its id.

        ``on_done`` is called with the reply, or the error: TimeoutError, LaneClosedError. It is
        called once, in any thread, not after ``cancel``, and must not wait for anything. Raises
        MessageTooLargeError, which says ``what`` is, LaneClosedError, and RefusedError if there is
        no thread that could tell it; it is not called then.
        """
        number = request.id = next(self._numbers)
        payload = self._tensors.begin(request, what, memory, tensors)

        def forget_and_tell(result: execution_pb2.CallReply | Exception) -> None:
            self._tensors.forget(number)
            if isinstance(result, Exception):
                self._connection.detach()
            on_done(result)

        try:
            # Before the frame is put: any thread's flush may send it, and its reply come at once.
            self._begin(number, on_done if tensors is None else forget_and_tell, timeout)
        except BaseException:
            self._tensors.never_sent(number)
            raise
        self._connection.put(FrameKind.CALL, payload)
        return number

    def begin_plain(
        self,
        encode: Callable[[int], FramePayload],
        timeout: float | None,
        on_done: OnDone,
        decode: Decode,
    ) -> int:
        """Begin a call like ``begin``, with the request that ``encode`` makes for its id.

        ``on_done`` gets what ``decode`` makes of the reply, or else the message.
        """
        number = next(self._numbers)
        payload = encode(number)
        try:
            self._begin(number, on_done, timeout, decode)
        except BaseException:
            self._tensors.never_sent(number)
            raise
        self._connection.put(FrameKind.CALL, payload)
        return number

    def _begin(
        self, number: int, on_done: OnDone, timeout: float | None, decode: Decode | None = None
    ) -> None:
        """Record a call that is about to be sent. Raises what ``begin`` does."""
        try:
            self._pending.add(number, on_done, timeout, decode)
            if not self._has_attendant:
                try:
                    self._provide_attendant()
                except RuntimeError as error:  # of threading: the system's limit is reached
                    if self._pending.take(number) is not None:  # else it has been told the end
                        raise no_thread_left_error("to wait for a call", error) from error
        except BaseException:
            self._pending.take(number)
            raise

    def flush(self) -> None:
        """Send what has begun. The callback of a lane that has ended is ``on_done``.

        Waits while the other side does not take what there is already, if that is much, but not
        longer than until the first of the calls is late.
        """
        # Before anything is written: a daemon whose replies are not read stops reading, too.
        self._call_attendant()
        with contextlib.suppress(LaneClosedError):
            self._connection.flush()
            if self._connection.writer.is_stuck:
                self._connection.wait_for_room(self._pending.first_deadline())
        if self._is_closed:
            self._close_if_unused()

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""
        if self._pending.take(number) is None:
            return False
        self._tensors.forget(number)
        self._send_cancel(number)
        return True

    def tend(self) -> None:
        """Send the releases of memory, and read those of the other side."""
        if self.memory is None or self._is_closed:
            return
        self.memory.tell_releases()
        with self._mutex:
            # A thread that reads already takes the other side's frames, too.
            reads = not self._reader_is_chosen
            if reads:
                self._reader_is_chosen = True
        with contextlib.suppress(LaneClosedError, WireError, TimeoutError):
            try:
                self._connection.flush()
                while reads:
                    self._read_reply(None, time.monotonic() + _MOMENT)
            finally:
                if reads:
                    self._choose_reader()
        if self._is_closed:
            self._close_if_unused()

    def close(self) -> None:
        """End the lane; calls of other threads end with LaneClosedError. Idempotent."""
        # Before any caller hears of the end: the blocks that its call had must be abandoned by the
        # time it uses its memory again.
        self._tensors.end()
        with self._mutex:
            self._is_closed = True
            waiting = list(self._waiting.values())
        # Readers and writers notice, and close nothing that is in use.
        self._connection.shut_down()
        for waiter in waiting:
            wake(waiter.wake)
        wake(self._attendant)
        self._pending.end(LaneClosedError("the lane is closed"))
        self._close_if_unused()

    # -- for ``SharedReading`` -------------------------------------------------------------------

    def _read_reply(self, reader: Waiter | None, deadline: float | None) -> None:
        """Read one frame as the one who may, and hand a reply over."""
        # Where several wait, something comes all the time, and one thread wakes the others.
        is_alone = reader is not None and len(self._waiting) == 1 and not self._pending.calls
        kind, payload = self._connection.read_frame(deadline, spins=is_alone)
        try:
            if kind is FrameKind.REPLY:
                if self._decode(payload, reader):
                    return
            elif kind in MEMORY_FRAMES and self.memory is not None:
                self.memory.take(kind, payload)
                return
            else:
                lane_messages.refuse_frame(kind, payload)
            reply = self._tensors.read_reply(payload)
        except WireError as error:
            raise self._connection.broken(error) from None
        except LaneClosedError as error:
            self._connection.break_off(str(error))
            raise
        memory = self.memory
        held = memory.replied(reply.id) if memory is not None else None
        with self._mutex:
            receiver = self._waiting.get(reply.id)
            if receiver is not None:
                receiver.reply = reply
        if receiver is not None:
            if receiver is not reader:
                wake(receiver.wake)
        elif (on_done := self._pending.take(reply.id)) is not None:
            on_done(reply)
        elif memory is not None:
            memory.discard(reply, held)

    def _decode(self, payload: bytes | memoryview, reader: Waiter | None) -> bool:
        """Return whether a reply was to a call that can decode it, which has its result now."""
        if not payload or payload[0] != _ID_TAG:
            return False
        number, shift = 0, -7
        for byte in payload[1:_LONGEST_ID]:  # a varint
            shift += 7
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        place = 2 + shift // 7
        # It was added before its request was sent, and is removed by its own thread alone.
        receiver = self._waiting.get(number)
        if receiver is not None:
            if receiver.decode is None or (result := receiver.decode(payload, place)) is None:
                return False
            if receiver is reader:  # which is this thread
                receiver.reply = result
                return True
            with self._mutex:
                receiver.reply = result
            wake(receiver.wake)
            return True
        return self._pending.take_plain(number, payload, place)

    def _leave(self, number: int) -> None:
        with self._mutex:
            self._waiting.pop(number, None)
            self._tensors.forget(number)
            # It may have been woken to read, and have given up in that moment.
            if self._waiting or self._pending.calls or self._connection.writer.is_stuck:
                self._wake_next_reader()
        if self._is_closed:
            self._close_if_unused()

    # -- the connection -------------------------------------------------------------------------

    def _write(self, kind: FrameKind, payload: FramePayload) -> None:
        self._connection.put(kind, payload)
        self._connection.flush()

    def _send_cancel(self, number: int) -> None:
        cancel = lane_pb2.LaneCancel(id=number)
        with contextlib.suppress(LaneClosedError):
            self._write(FrameKind.CANCEL, cancel.SerializeToString())
            self._connection.detach()  # the call may not have been written yet

    def _broke(self, why: str) -> None:
        self._tensors.end()  # before any caller hears of the end: see ``close``
        super()._broke(why)
