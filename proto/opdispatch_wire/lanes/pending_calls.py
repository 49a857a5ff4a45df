"""Calls in flight on a lane for which no thread waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from opdispatch_wire.lanes.deadline_watch import DeadlineWatch
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.status import no_thread_left_error

OnDone = Callable[[Any], None]
"""Called with the CallReply, the decoded reply, or an exception."""
Decode = Callable[["bytes | memoryview", int], Any]
"""Returns the result in the payload of a REPLY whose id ends at that offset, or None."""

_NO_CALL = (None, None, None)


class PendingCalls:
    """The pending calls of one lane. Thread-safe.

    The lane takes a call out when its reply has come; here it ends with an error. ``_mutex``
    protects ``calls`` and ``_ended``. The thread that removes a call from ``calls`` calls its
    ``on_done``, so that it is called exactly once.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.calls: dict[int, tuple[OnDone, float | None, Decode | None]] = {}
        self._ended: LaneClosedError | None = None
        self._watch = DeadlineWatch(self._expire)

    def add(
        self,
        number: int,
        on_done: OnDone,
        timeout: float | None,
        decode: Decode | None = None,
    ) -> None:
        """Add a call, which fails with TimeoutError after ``timeout`` seconds.

        Raises LaneClosedError after ``end``, and RefusedError if no thread can be started for the
        timeout; ``on_done`` is then not called.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._mutex:
            if self._ended is not None:
                raise LaneClosedError(str(self._ended), was_sent=False)
            self.calls[number] = (on_done, deadline, decode)
        if deadline is None:
            return
        try:
            self._watch.look_at(deadline)
        except RuntimeError as error:  # no thread: the system's limit is reached
            if self.take(number) is not None:  # otherwise ``end`` has called ``on_done``
                raise no_thread_left_error("to time a call", error) from error

    def first_deadline(self) -> float | None:
        """Return the earliest deadline, by ``time.monotonic``; None if there is none."""
        with self._mutex:
            return min((at for _, at, _ in self.calls.values() if at is not None), default=None)

    def take(self, number: int) -> OnDone | None:
        """Remove a call and return its ``on_done``; None if it is not there any more."""
        with self._mutex:
            call = self.calls.pop(number, None)
        return None if call is None else call[0]

    def take_plain(self, number: int, payload: bytes | memoryview, place: int) -> bool:
        """Pass a reply to its call if that can decode the bytes; return whether it has."""
        decode = self.calls.get(number, _NO_CALL)[2]
        if decode is None or (result := decode(payload, place)) is None:
            return False
        if (on_done := self.take(number)) is not None:
            on_done(result)
        return True

    def end(self, error: LaneClosedError) -> None:
        """Fail all calls with ``error``, and refuse new ones. Idempotent."""
        with self._mutex:
            self._ended = self._ended or error
            left, self.calls = self.calls, {}
        # Callbacks are called without the mutex, because they may add and take calls themselves.
        self._watch.stop()
        for on_done, _, _ in left.values():
            on_done(type(error)(*error.args))  # a separate error, whose ``call`` may be set

    def _expire(self, now: float) -> float | None:
        """Fail the calls whose deadlines have passed; return the next deadline."""
        with self._mutex:
            due = [n for n, (_, at, _) in self.calls.items() if at is not None and at <= now]
            late = [self.calls.pop(number)[0] for number in due]
        following = self.first_deadline()
        for on_done in late:
            on_done(TimeoutError())
        return following
