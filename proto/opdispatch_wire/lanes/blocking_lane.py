"""The calling side of a local lane, for threads.

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

# Longest time in seconds that ``tend`` reads frames: just those in the socket already.
_MOMENT = 0.001


class BlockingLane(SharedReading, TensorLane):
    """One lane that any number of threads share."""

    def __init__(self, connection: socket.socket, limit: int, reply_limit: int) -> None:
        SharedReading.__init__(self, connection, reply_limit)
        TensorLane.__init__(self, limit)
        self._numbers = itertools.count(1)
        self.number = 0
        """The other side's number for this connection."""

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
        """Connect to the socket at ``path`` and perform the handshake, within ``patience`` seconds.

        Accept replies of at most ``limit`` bytes, or ``call_limit`` including large tensors. With
        ``share``, memory is shared if the other side supports it. Raises OSError, LaneClosedError,
        RefusedError, the error of a REFUSAL, and WireError.
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
        """Whether the lane has ended, so that calls on it fail."""
        # Without a waiting thread, nothing reads, so the socket has to be checked.
        return self._is_closed or not (
            self._waiting or self._pending.calls or not self._has_been_left()
        )

    is_connected = True
    """Whether the lane ends with its connection."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""
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
        """Send a call under a new id and wait for the reply, which may be an error.

        If that takes long, ``watch`` is asked repeatedly whether to give up; if so,
        InterpreterBusyError is raised, and the call is cancelled.

        Its tensors may be in ``memory``, which the caller may reuse once it has the reply, or the
        large ones in ``tensors``, from which they are sent without a copy, and which receives those
        of the reply.

        Raises MessageTooLargeError, which names the call ``what``; TimeoutError, LaneClosedError,
        and WireError for a malformed reply. Any exception during the wait, such as Ctrl-C, cancels
        the call.
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
        """Make a call as ``call`` does, with the request that ``encode`` writes for its id.

        Return the reply as ``decode`` returns it, or the parsed message if that is None. The id is
        in ``LaneClosedError.call``.
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
                # Before the request is written, because the reading thread may get the reply before
                # this one waits.
                self._waiting[number] = waiter
                # Not for a large request: replies of other calls would wait until it is written.
                if not self._reader_is_chosen and len(payload) <= COPIED_AT_MOST:
                    self._reader_is_chosen = reads = True
            is_sent = True
            self._connection.write(FrameKind.CALL, payload)
            # The watch begins only after a while, which few calls take.
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
            # Not for LaneClosedError itself; for its subclass InterpreterBusyError, the lane works.
            if is_sent and type(error) is not LaneClosedError and waiter.reply is None:
                self._send_cancel(number)
            self._leave(number)
            # The reply may have just come. A decoded result has been copied out of memory already.
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
        """Begin a call, which is sent by the next ``flush``, and return its id.

        ``on_done`` is called with the reply, or with TimeoutError or LaneClosedError. It is called
        once, in any thread, but not after ``cancel``, and must not block. Raises
        MessageTooLargeError, which names the call ``what``, LaneClosedError, and RefusedError if no
        thread can be started that would call ``on_done``; it is then not called.
        """
        number = request.id = next(self._numbers)
        payload = self._tensors.begin(request, what, memory, tensors)

        def forget_and_tell(result: execution_pb2.CallReply | Exception) -> None:
            self._tensors.forget(number)
            if isinstance(result, Exception):
                self._connection.detach()
            on_done(result)

        try:
            # Before the frame is put, because another thread's flush may send it at once.
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
        """Begin a call as ``begin`` does, with the request that ``encode`` writes for its id.

        ``on_done`` gets the reply as ``decode`` returns it, or the parsed message if that is None.
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
        """Record a call that is about to be sent. Raises the errors of ``begin``."""
        try:
            self._pending.add(number, on_done, timeout, decode)
            if not self._has_attendant:
                try:
                    self._provide_attendant()
                except RuntimeError as error:  # no thread: the system's limit is reached
                    if self._pending.take(number) is not None:  # otherwise ``on_done`` was called
                        raise no_thread_left_error("to wait for a call", error) from error
        except BaseException:
            self._pending.take(number)
            raise

    def flush(self) -> None:
        """Send the requests of calls that have begun. Errors go to their ``on_done``.

        If many bytes are buffered already, waits for the other side to accept some, until the first
        deadline of the calls at most.
        """
        # Before anything is written: a daemon whose replies are not read stops reading, too, so
        # that the write would never end.
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
        """Send pending releases of shared memory, and read those of the other side."""
        if self.memory is None or self._is_closed:
            return
        self.memory.tell_releases()
        with self._mutex:
            # If another thread is reading, it reads the releases as well.
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
        # Before any caller gets its error: the blocks of its call must be abandoned before it can
        # use its memory again.
        self._tensors.end()
        with self._mutex:
            self._is_closed = True
            waiting = list(self._waiting.values())
        # Only shut down: readers and writers may still use the socket; the last one closes it.
        self._connection.shut_down()
        for waiter in waiting:
            wake(waiter.wake)
        wake(self._attendant)
        self._pending.end(LaneClosedError("the lane is closed"))
        self._close_if_unused()

    # -- for ``SharedReading`` -------------------------------------------------------------------

    def _read_reply(self, reader: Waiter | None, deadline: float | None) -> None:
        """Read one frame, with the right to read held, and pass a reply to its call."""
        # Spin only if this thread alone waits: with several, frames come all the time anyway.
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
        except BaseException:  # of a signal handler, or for want of memory
            # The reply is lost, and another thread may wait for it.
            self._connection.break_off()
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
        """Pass a reply to its call if that can decode the bytes; return whether it has."""
        if not payload or payload[0] != _ID_TAG:
            return False
        number, shift = 0, -7
        for byte in payload[1:_LONGEST_ID]:  # a varint
            shift += 7
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        place = 2 + shift // 7
        # No lock: the waiter was added before its request was sent, and only its own thread
        # removes it.
        receiver = self._waiting.get(number)
        if receiver is not None:
            if receiver.decode is None or (result := receiver.decode(payload, place)) is None:
                return False
            if receiver is reader:  # the reply is this thread's own
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
            # This thread may have been woken to read just when it gave up: wake another one.
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
        self._tensors.end()  # before any caller gets its error: see ``close``
        super()._broke(why)
