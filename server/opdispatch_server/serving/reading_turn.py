"""The right to read a lane, held by one thread at a time.

See Note [The thread that reads a call runs it].
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.lane")

PATIENCE = 0.005
"""The least time, in seconds, after which kernels expected to be quick stop blocking reads.

And the interval at which that is checked.
"""

# The number of idle threads, and how long each waits for a turn, in seconds.
_MAX_RESTING = KERNEL_THREADS
_REST = 10.0

# Seconds between two attempts to start a thread for a vacant turn: Python 3.11 leaks a few KiB with
# each failure.
_TRY_AGAIN = 0.5

_CURRENT = threading.local()


class _Rest:
    """A resting thread: its wake-up lock and the turn it gets."""

    def __init__(self) -> None:
        self.turn = 0
        self.wake = threading.Lock()
        self.wake.acquire()


class ReadingTurn:
    """Assigns the right to read, in turns counted from 1; the thread with the newest may read.

    ``start_thread`` starts a thread that reads, with its turn, if none is waiting here. ``on_pass``
    is called between two turns, by the thread that passes the right on.

    The thread with the turn either reads or runs kernels, and others may take the turn only while
    it runs kernels: two threads never read at a time. If no thread can be started, the turn is
    vacant: the first thread that would wait takes it, and ``hand_over_if_stuck`` tries again.

    ``_mutex`` protects every field; ``is_at`` reads without it, since no turn comes back, and so
    do the watch and those that read ``away``, which check again.
    """

    def __init__(
        self,
        start_thread: Callable[[int], None],
        on_pass: Callable[[], None] = lambda: None,
        patience: Callable[[], float] = lambda: PATIENCE,
    ) -> None:
        """Take ``patience``, which returns how long kernels may block reading, in seconds."""
        self._patience = patience
        self._start_thread = start_thread
        self._on_pass = on_pass
        self._mutex = threading.Lock()
        self.number = 1
        """The newest turn; read without ``_mutex``: see ``is_at``."""
        self._resting: list[_Rest] = []
        # When the thread with the turn began to run kernels; 0: it reads.
        self._busy_since = 0.0
        self.away = 0
        """The number of threads that finish their calls after they have lost the turn."""
        self._is_vacant = False
        self._no_thread_before = 0.0
        self._lacks_threads = False  # and that has been logged
        self._is_closed = False
        self.was_busy = False
        """Whether a kernel has begun since the last call of ``hand_over_if_stuck``."""

    def is_at(self, turn: int) -> bool:
        """Return whether that turn is the newest; for its own thread, while that runs no kernel."""
        return self.number == turn

    def become_mine(self, turn: int) -> None:
        """Record that this thread has the turn, for ``hand_over_turn``."""
        _CURRENT.turn = (self, turn)

    def begin_kernel(self, turn: int, now: float) -> None:
        """Record that the turn's thread begins a kernel, possibly the next without reading."""
        with self._mutex:
            if self.number == turn:
                self.was_busy = True
                # The time of the first of several counts: however short they are, no thread reads
                # meanwhile.
                self._busy_since = self._busy_since or now

    def end_kernels(self, turn: int) -> None:
        """Record that the kernels have ended: the thread reads again if it still has the turn."""
        with self._mutex:
            if self.number == turn:
                self._busy_since = 0.0

    def hand_over(self, turn: int) -> None:
        """Pass the turn to another thread, if it is still the newest; for its own thread."""
        self._pass_on(lambda: self.number == turn)

    def hand_over_if_stuck(self) -> bool:
        """Take the turn from a thread that has run kernels for too long.

        Return whether it began any since the last call, or no thread has the turn.
        """
        # Without the mutex: if a kernel begins in between and this assignment loses it, the next
        # check finds it by ``_busy_since``.
        was_busy, self.was_busy = self.was_busy, False
        self._pass_on(self._is_stuck)
        return was_busy or self._is_vacant

    def rest(self) -> int | None:
        """Block until this thread gets a turn, and return it; None if it should end."""
        rest = _Rest()
        with self._mutex:
            self.away -= 1
            if self._is_vacant and not self._is_closed:
                self._is_vacant = False
                return self.number
            if self._is_closed or len(self._resting) >= _MAX_RESTING:
                return None
            # Checked and queued in one step: a turn that becomes vacant later finds this thread.
            self._resting.append(rest)
        if not rest.wake.acquire(timeout=_REST):
            with self._mutex:
                if rest in self._resting:
                    self._resting.remove(rest)
                    return None
            rest.wake.acquire()  # it was chosen at that moment
        return rest.turn or None

    def close(self) -> None:
        """End the turns and wake the waiting threads. Idempotent."""
        with self._mutex:
            self._is_closed = True
            resting, self._resting = self._resting, []
        for rest in resting:
            rest.wake.release()

    def _is_stuck(self) -> bool:
        return bool(self._busy_since) and time.monotonic() - self._busy_since > self._patience()

    def _may_try_again(self) -> bool:
        return time.monotonic() >= self._no_thread_before

    def _pass_on(self, may_pass: Callable[[], bool]) -> None:
        with self._mutex:
            if self._is_closed or not (self._may_try_again() if self._is_vacant else may_pass()):
                return
            # From here on the previous thread sees that its turn is over; a vacant turn has no
            # thread.
            if not self._is_vacant:
                self.number += 1
                self.away += 1
                self._busy_since = 0.0
            self._is_vacant = False
            following = self.number
            rest = self._resting.pop() if self._resting else None
        # After releasing the mutex, because it writes to the connection, and before the next thread
        # reads, because replies that the last thread has buffered must not wait for a kernel to
        # end.
        self._on_pass()
        if rest is None:
            self._start(following)
        else:
            _wake(rest, following)

    def _start(self, turn: int) -> None:
        """Start a thread for a turn without one, or leave the turn vacant."""
        try:
            self._start_thread(turn)
        except RuntimeError as error:  # raised by threading at the system's limit
            with self._mutex:
                is_news, self._lacks_threads = not self._lacks_threads, True
                self._no_thread_before = time.monotonic() + _TRY_AGAIN
                # A thread may have begun to rest before the turn became vacant: give it the turn.
                rest = self._resting.pop() if self._resting else None
                self._is_vacant = rest is None and not self._is_closed
            if rest is not None:
                _wake(rest, turn)
            if is_news:
                LOG.warning(
                    "a lane waits for its kernels to end before it is read: %s",
                    error,
                    extra=fields(Event.LANE_SLOW),
                )
        else:
            with self._mutex:
                self._lacks_threads = False


def _wake(rest: _Rest, turn: int) -> None:
    rest.turn = turn
    rest.wake.release()


def hand_over_turn() -> None:
    """Pass the turn on before this thread waits for another process, so that others may read."""
    current: tuple[ReadingTurn, int] | None = getattr(_CURRENT, "turn", None)
    if current is not None:
        turn, number = current
        turn.hand_over(number)
