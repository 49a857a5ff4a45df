"""Calls that are under way on a lane without a thread that waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from opdispatch_wire.lanes.deadline_watch import DeadlineWatch
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.status import no_thread_left_error

OnDone = Callable[[Any], None]
"""Told the CallReply of a call, or what its ``Decode`` has made of the bytes; or an exception."""
Decode = Callable[["bytes | memoryview", int], Any]
"""Returns the result in the payload of a REPLY whose id ends at that place, or None."""

_NO_CALL = (None, None, None)


class PendingCalls:
    """Pending calls, which end with a reply, for which their lane removes them, or with an error
    here.

    Any thread may use it. ``_mutex`` protects ``calls`` and ``_ended``: a call is in
    ``calls``, and the thread that removes it calls its ``on_done``.
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
        """Add a call; after ``timeout`` seconds it ends with TimeoutError.

        Raises LaneClosedError after ``end``, and RefusedError if no thread can be started that
        would do that; ``on_done`` is not called then.
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
        except RuntimeError as error:  # of threading: the system's limit is reached
            if self.take(number) is not None:  # else it has been told the end of the lane
                raise no_thread_left_error("to time a call", error) from error

    def first_deadline(self) -> float | None:
        """Return the first deadline, a time of ``time.monotonic``; None if there is none."""
        with self._mutex:
            return min((at for _, at, _ in self.calls.values() if at is not None), default=None)

    def take(self, number: int) -> OnDone | None:
        """Take a call out, if it is still there."""
        with self._mutex:
            call = self.calls.pop(number, None)
        return None if call is None else call[0]

    def take_plain(self, number: int, payload: bytes | memoryview, place: int) -> bool:
        """Return whether the call of that id can decode the reply: then it has its result now."""
        decode = self.calls.get(number, _NO_CALL)[2]
        if decode is None or (result := decode(payload, place)) is None:
            return False
        if (on_done := self.take(number)) is not None:
            on_done(result)
        return True

    def end(self, error: LaneClosedError) -> None:
        """Fail all calls with ``error``; none can be added any more. Idempotent."""
        with self._mutex:
            self._ended = self._ended or error
            left, self.calls = self.calls, {}
        # After the mutex, as everywhere here: callbacks may add and take calls themselves.
        self._watch.stop()
        for on_done, _, _ in left.values():
            on_done(type(error)(*error.args))  # its own, which may say its id

    def _expire(self, now: float) -> float | None:
        """Fail the calls whose deadline has passed; return when to look again."""
        with self._mutex:
            due = [n for n, (_, at, _) in self.calls.items() if at is not None and at <= now]
            late = [self.calls.pop(number)[0] for number in due]
        following = self.first_deadline()
        for on_done in late:
            on_done(TimeoutError())
        return following
