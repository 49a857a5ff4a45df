"""The turns of the calls of one library in an interpreter."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from time import monotonic_ns
from typing import Any, Generic, Protocol, TypeVar

from opdispatch.errors import OpdispatchError
from opdispatch_server.worker.libraries.queue_space import QueueSpace
from opdispatch_wire.errors import RefusedError

# The weight of the newest call in the moving average.
_NEWEST_SHARE = 0.2


class Job(Protocol):
    """A call that may have to wait."""

    waits_since: int
    """When it began to wait, in ns of ``time.monotonic_ns``; 0: it has not had to."""

    @property
    def source(self) -> Hashable:
        """The sender."""

    @property
    def operator(self) -> str:
        """The operator that it calls."""

    @property
    def size(self) -> int:
        """Its size in bytes while queued."""

    def start(self, turns: LibraryTurns[Any]) -> None:
        """Start in another thread, which ends the turn.

        Called when ``LibraryTurns.end`` has returned it in a thread that does not run calls. Raises
        RuntimeError if no thread can be started.
        """

    def refuse(self, error: OpdispatchError) -> None:
        """Refuse the call with an error: it never starts."""


J = TypeVar("J", bound=Job)


class LibraryTurns(Generic[J]):
    """The calls of one library that run, and those that wait for one of them to end.

    Calls of one source begin in order of arrival; waiting sources take turns. The daemon is one
    source, and sends a few calls more than the library runs at a time: see Note [Calls that are
    sent ahead].

    ``_lock`` protects everything; calls wait only while ``limit`` calls run, and each of these,
    when it ends, starts the next one in its place.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: OrderedDict[Hashable, deque[tuple[J, QueueSpace | None]]] = OrderedDict()
        self.seconds = 0.0
        """The average duration of a call; 0 before the first one has ended."""

    def begin(self, job: J, limit: int, room: QueueSpace | None = None) -> bool:
        """Begin the call and return True; otherwise a later ``end`` returns it.

        Raises QueueFullError if it would have to wait and there is no ``room``.
        """
        with self._lock:
            # Queued behind waiting calls even if this call's limit is higher: one of them may be of
            # the same source, and the calls of one source begin in order.
            if self._running < max(limit, 1) and not self._waiting:
                self._running += 1
                return True
            if room is not None:
                room.enter(job.operator, job.size, self.seconds)
            job.waits_since = monotonic_ns()
            queue = self._waiting.get(job.source)
            if queue is None:
                queue = self._waiting[job.source] = deque()
            queue.append((job, room))
            return False

    def begin_at_once(self, limit: int) -> bool:
        """Begin a call like ``begin``, but return False, unqueued, if it would have to wait."""
        with self._lock:
            if (self._running and self._running >= limit) or self._waiting:
                return False
            self._running += 1
            return True

    def end(self, seconds: float | None = None) -> J | None:
        """End a call; return the call that is to run in its place, if one waits.

        It took ``seconds``, unless that has been noted.
        """
        with self._lock:
            if seconds is not None:
                self.seconds += _NEWEST_SHARE * (seconds - self.seconds)
            if not self._waiting:
                self._running -= 1
                return None
            # ``_running`` is unchanged: the slot is passed on without becoming free, or a call that
            # arrives now would take it from one that has waited.
            source, queue = self._waiting.popitem(last=False)
            job, room = queue.popleft()
            if queue:
                # To the end of the order, so that sources take turns.
                self._waiting[source] = queue
            if room is not None:
                room.leave(job.size)
            return job

    def start(self, job: J) -> None:
        """Start a job whose turn has come in another thread.

        If no thread can be started, it is refused, and so are its successors in that slot.
        """
        following: J | None = job
        while following is not None:
            try:
                following.start(self)
            except RuntimeError as error:  # raised by threading at the system's limit
                following.refuse(no_thread_error(following.operator, error))
                following = self.end()
            else:
                return

    def note(self, seconds: float) -> None:
        """Record how long a call took."""
        # Without the lock: of two calls that end at once, the average may miss one.
        self.seconds += _NEWEST_SHARE * (seconds - self.seconds)


def no_thread_error(operator: str, error: RuntimeError) -> RefusedError:
    """Return the error for a call for which no thread could be started."""
    return RefusedError(
        f"the interpreter cannot start a thread for the call of {operator}, "
        f"which never started: {error}",
        hint="a limit of threads or memory is reached; try again in a moment, or raise it",
        operator=operator,
        started="no",
    )
