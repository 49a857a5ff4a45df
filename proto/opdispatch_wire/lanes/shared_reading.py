"""Threads that wait for replies on one connection, and take turns in reading it.

Note [Who reads a shared lane]
    No thread only reads. Of the threads that wait for replies, one has the right to read: it passes
    the others their replies, and, when it has its own, the right to read. So a lane with one caller
    never wakes another thread, which would cost more than everything else done here. Likewise, one
    thread at a time writes, and also writes the frames that others put meanwhile.

    For calls without a waiting thread (``begin``), one more thread waits, the attendant, like any
    other caller: it reads if no other thread does. It is started with the first such call, which
    fails if that is not possible, and ends after a while without any. The thread that reads the
    reply of such a call calls ``on_done``, which therefore must not block.

    The attendant also reads while a thread waits to write: the other side may be blocked writing a
    reply that is no longer awaited, and reads nothing until that is read.

    ``_mutex`` protects ``_waiting`` and ``_reader_is_chosen``, which is true whenever a thread
    waits. ``_attending`` protects ``_has_attendant``, which is true whenever a begun call needs the
    attendant. It is held while the attendant is started, so that no call relies on a thread that
    could not be started, and while the attendant decides to end. It is reentrant because the
    garbage collector may cancel calls within; two attendants do no harm.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.blocking_connection import BlockingConnection
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode, PendingCalls
from opdispatch_wire.lanes.sleeper import sleeper, wake

# Seconds that the attendant stays when it has nothing to do.
_LINGER = 1.0


class Waiter:
    """A thread that waits for its reply. ``wake`` is released when it has that or may read.

    ``reply`` is the parsed message, or what ``decode`` returned for its bytes.
    """

    number: int
    decode: Decode | None
    reply: Any = None
    wake: threading.Lock | None = None


class SharedReading(ABC):
    """The waiting threads of one connection, and its attendant."""

    def __init__(self, connection: socket.socket, reply_limit: int) -> None:
        self._connection = BlockingConnection(
            connection, reply_limit, self._call_attendant, self._broke
        )
        self._mutex = threading.Lock()
        self._waiting: dict[int, Waiter] = {}
        self._reader_is_chosen = False
        self._pending = PendingCalls()
        self._attending = threading.RLock()
        self._has_attendant = False
        self._attendant = sleeper()
        self._is_closed = False

    @abstractmethod
    def _read_reply(self, reader: Waiter | None, deadline: float | None) -> None:
        """Read one frame, with the right to read held, and pass a reply to its call.

        Raises TimeoutError, LaneClosedError and WireError.
        """

    def _wait(self, waiter: Waiter, deadline: float | None, reads: bool = False) -> Any:
        """Wait for the reply and return it. Raises TimeoutError, LaneClosedError and WireError.

        With ``reads``, this thread has the right to read already. A call that has its reply may
        have been removed from ``_waiting``.
        """
        while True:
            if not reads:
                with self._mutex:
                    reads = not self._reader_is_chosen
                    if reads:
                        self._reader_is_chosen = True
                    elif waiter.reply is None and waiter.wake is None:
                        # Created with the mutex held, which the reader takes to pass a reply on: an
                        # earlier reply is seen above, and a later one finds the lock to release.
                        waiter.wake = threading.Lock()
                        waiter.wake.acquire()
            if reads:
                try:
                    while waiter.reply is None:
                        self._read_reply(waiter, deadline)
                    return waiter.reply
                finally:
                    # ``_choose_reader``, inlined; a caller that is alone has none to wake.
                    with self._mutex:
                        self._reader_is_chosen = False
                        if waiter.reply is not None:
                            self._waiting.pop(waiter.number, None)
                        if self._waiting or self._pending.calls or self._connection.writer.is_stuck:
                            self._wake_next_reader()
            if waiter.wake is not None and waiter.reply is None:
                left = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not waiter.wake.acquire(timeout=left) and waiter.reply is None:
                    raise TimeoutError
            if waiter.reply is not None:
                return waiter.reply
            if self._is_closed:
                raise LaneClosedError("the lane is closed")

    def _needs_attendant(self) -> bool:
        return bool(self._pending.calls) or self._connection.writer.is_stuck

    def _call_attendant(self) -> None:
        """Make sure that a thread reads, if the attendant is needed."""
        # A failure is harmless: begun calls have an attendant already, and without one, only a
        # writing thread has to wait longer.
        with contextlib.suppress(RuntimeError):
            self._provide_attendant()
        with self._mutex:
            self._wake_next_reader()

    def _provide_attendant(self) -> None:
        """Start the attendant if it is needed. Raises RuntimeError if no thread can be started."""
        with self._attending:
            if not self._has_attendant and self._needs_attendant():
                threading.Thread(target=self._attend, name="lane-attendant", daemon=True).start()
                self._has_attendant = True

    def _attend(self) -> None:
        """Run the attendant: read whenever that is needed and no other thread does."""
        while True:
            with self._mutex:
                reads = self._needs_attendant() and not self._reader_is_chosen
                if reads:
                    self._reader_is_chosen = True
            if reads:
                # An error ends the lane, which has failed all calls: ``_pending`` is empty then.
                with contextlib.suppress(LaneClosedError, WireError, TimeoutError):
                    self._read_for_others()
            elif not self._attendant.acquire(timeout=_LINGER) or self._is_closed:
                with self._attending:
                    if self._is_closed or not self._needs_attendant():
                        self._has_attendant = False
                        break
        if self._is_closed:
            self._close_if_unused()

    def _read_for_others(self) -> None:
        try:
            while self._needs_attendant():
                # With a timeout, because cancelled calls get no reply: check again for others.
                self._read_reply(None, time.monotonic() + _LINGER)
        finally:
            self._choose_reader()

    def _choose_reader(self) -> None:
        """Pass the right to read to another waiting thread, if there is one."""
        with self._mutex:
            self._reader_is_chosen = False
            self._wake_next_reader()

    def _wake_next_reader(self) -> None:
        """Wake a sleeping thread to read, if none does. The caller holds ``_mutex``."""
        if self._reader_is_chosen:
            return
        for waiter in self._waiting.values():
            if waiter.reply is None and waiter.wake is not None:
                wake(waiter.wake)
                return
        if self._pending.calls or self._connection.writer.is_stuck:
            wake(self._attendant)

    def _close_if_unused(self) -> None:
        with self._mutex:
            unused = not self._waiting and not self._reader_is_chosen
        if unused:
            self._connection.close()

    def _has_been_left(self) -> bool:
        with self._mutex:
            # Only without a reader, which notices the end itself.
            left = not self._reader_is_chosen and self._connection.has_been_left()
        if left:
            self._connection.break_off()
        return left

    def _broke(self, why: str) -> None:
        """Fail all calls, because the connection has broken."""
        self._is_closed = True
        with self._mutex:
            for waiter in self._waiting.values():
                wake(waiter.wake)
        wake(self._attendant)
        self._pending.end(LaneClosedError(why))
