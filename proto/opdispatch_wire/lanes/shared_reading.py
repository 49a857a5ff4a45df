"""Threads that wait for replies on one connection, and take turns in reading it.

Note [Who reads a shared lane]
    There is no thread that only reads. Of the threads that wait for replies, one has the right
    to read: it hands the others what is theirs, and, when it has its own reply, the right as
    well. A lane with one caller thus never wakes another thread, which costs more than all
    that is done here; and of the frames that threads want to write while one is writing, that
    one writes all, together.

    Calls without a waiting thread (``begin``) are waited for by one more thread, the attendant,
    like any other caller: it reads if no other thread does. It comes with the first such call,
    which does not begin without it, and goes when there has been none for a while. The reader of
    the reply of such a call tells it to ``on_done``, which for that reason must not wait for
    anything.

    The attendant also reads while a thread waits to write: the other side may be writing a
    reply that is not awaited any more, and not read before that is taken.

    ``_mutex`` protects ``_waiting`` and ``_reader_is_chosen``: the reader is chosen, or no thread
    waits. ``_attending`` protects ``_has_attendant``: the attendant is there, or no call that has
    begun needs it. It is held while the attendant is started, so that no call relies on one that
    cannot be, and while it decides to go. The garbage collector may cancel calls in the midst of
    that, hence its thread may take it again: two attendants do no harm.
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

# How long the attendant stays when it has nothing to do.
_LINGER = 1.0


class Waiter:
    """One call. ``wake`` is released when it has its reply, or the right to read.

    ``reply`` is the message, or what ``decode`` has made of its bytes.
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
        """Read one frame as the one who may, and hand a reply over.

        Raises TimeoutError, LaneClosedError, WireError.
        """

    def _wait(self, waiter: Waiter, deadline: float | None, reads: bool = False) -> Any:
        """Return the reply, when it is there. Raises TimeoutError, LaneClosedError, WireError.

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
                        # Made with the mutex held, which the reader takes to hand a reply over: a
                        # reply that has come is seen above, and a later one finds the lock to
                        # release.
                        waiter.wake = threading.Lock()
                        waiter.wake.acquire()
            if reads:
                try:
                    while waiter.reply is None:
                        self._read_reply(waiter, deadline)
                    return waiter.reply
                finally:
                    # ``_choose_reader``; a caller that is alone has none to choose.
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
        """See to it that a thread reads, if the attendant is needed."""
        # Calls that have begun have one already: without, only a thread that writes has to wait.
        with contextlib.suppress(RuntimeError):
            self._provide_attendant()
        with self._mutex:
            self._wake_next_reader()

    def _provide_attendant(self) -> None:
        """Start the attendant if it is needed. Raises RuntimeError if that cannot be."""
        with self._attending:
            if not self._has_attendant and self._needs_attendant():
                threading.Thread(target=self._attend, name="lane-attendant", daemon=True).start()
                self._has_attendant = True

    def _attend(self) -> None:
        """Read when it is needed and no other thread does: the life of the attendant."""
        while True:
            with self._mutex:
                reads = self._needs_attendant() and not self._reader_is_chosen
                if reads:
                    self._reader_is_chosen = True
            if reads:
                # An error of the lane is everybody's; ``_pending`` is empty then.
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
                # Those that are cancelled get no reply: look again whether there are others.
                self._read_reply(None, time.monotonic() + _LINGER)
        finally:
            self._choose_reader()

    def _choose_reader(self) -> None:
        """Pass the right to read to another waiting thread, if there is one."""
        with self._mutex:
            self._reader_is_chosen = False
            self._wake_next_reader()

    def _wake_next_reader(self) -> None:
        """Wake a sleeping thread to read if none does; ``_mutex`` is held."""
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
            # The reader notices.
            left = not self._reader_is_chosen and self._connection.has_been_left()
        if left:
            self._connection.break_off()
        return left

    def _broke(self, why: str) -> None:
        """End all calls: the connection broke, and was not closed."""
        self._is_closed = True
        with self._mutex:
            for waiter in self._waiting.values():
                wake(waiter.wake)
        wake(self._attendant)
        self._pending.end(LaneClosedError(why))
