"""The log of errors that kernels raise, with few lines for many similar ones, and their count.

Errors are logged and counted in the interpreter, since direct calls bypass the daemon.

Errors of one operator and one exception class are similar. See Note [Records that are alike];
errors that were left out are logged when their pause is over, even if none follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.log_relay import cut
from opdispatch_server.log_repetition import Repetition
from opdispatch_server.logs import log_regardless
from opdispatch_wire.v1 import interpreter_pb2

LOG = logging.getLogger("opdispatch.kernels")

# How many exception classes are distinguished for one operator, and how many groups are remembered:
# a kernel may create a class for each call.
_CLASSES_PER_OPERATOR = 8
_MOST_REMEMBERED = 1024
_MESSAGE_LIMIT = 1000
_NEWS_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that a kernel failed: only text, since an exception keeps the arguments alive."""

    operator: str
    message: str
    exception: str
    """The class of the kernel's exception."""
    traceback: str = ""
    call: int = 0
    load_id: int = 0
    library: str = ""
    version: int = 0
    trace: str = ""
    """The id of the distributed trace."""
    level: int = logging.ERROR
    """DEBUG if the interpreter that the kernel had called has already logged the error."""

    @classmethod
    def of(cls, error: OpdispatchError, **about: Any) -> FailedCall:
        """Return what is logged of a call's ``error``; ``about`` are the other attributes."""
        return cls(
            message=cut(error.message, _MESSAGE_LIMIT),
            exception=error.facts.get("exception_type") or type(error).__name__,
            traceback=error.facts.get("traceback", ""),
            **about,
        )


@dataclass(slots=True)
class _Alike(Repetition):
    """A group of similar errors; the last of those that were left out."""

    last: FailedCall | None = None


class KernelErrorLog:
    """Logs and counts; any thread may call it.

    ``interpreter`` returns the interpreter's name; ``on_news`` is called, in any thread, when the
    first call since ``take_counts`` has failed. ``_lock`` guards everything declared below it, and
    is held briefly: nothing is logged under it.
    """

    def __init__(
        self,
        interpreter: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self._interpreter = interpreter
        self._clock = clock
        self.on_news = on_news
        self._lock = threading.Lock()
        self._alike: OrderedDict[tuple[str, str], _Alike] = OrderedDict()
        self._classes: Counter[str] = Counter()
        self._counts: Counter[tuple[str, int]] = Counter()

    def note(self, call: FailedCall) -> None:
        """Count a failed call; log it, unless many similar ones were just logged."""
        to_log: list[tuple[FailedCall, int]] = []
        with self._lock:
            is_news = not self._counts
            self._counts[call.operator, call.load_id] += 1
            now = self._clock()
            alike = self._find(call, to_log)
            alike.last, alike.left_out = call, alike.left_out + 1
            if alike.is_due(now):
                to_log.append(_next_line(alike, now))
        self._log(to_log)
        if is_news:
            self.on_news()

    def flush(self, *, all_of_them: bool = False) -> float | None:
        """Log left-out errors that are due; return the seconds until the next is, or None.

        ``all_of_them`` also logs errors that are not due yet.
        """
        with self._lock:
            now = self._clock()
            to_log = [
                _next_line(alike, now)
                for alike in self._alike.values()
                if alike.left_out and (all_of_them or alike.is_due(now))
            ]
            due = [alike.next_at for alike in self._alike.values() if alike.left_out]
        self._log(to_log)
        return max(min(due) - now, 0.0) if due else None

    def take_counts(self) -> interpreter_pb2.KernelErrors | None:
        """Return how many calls have failed since the last time; None if none have."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return None
        return interpreter_pb2.KernelErrors(
            counts=[
                interpreter_pb2.KernelErrorCount(operator=operator, load_id=load_id, count=count)
                for (operator, load_id), count in counts.items()
            ]
        )

    async def report(
        self, say: Callable[[interpreter_pb2.InterpreterMessage], Awaitable[None]]
    ) -> None:
        """Report failed calls to the daemon, and log errors that are due, until cancelled."""
        news, loop = asyncio.Event(), asyncio.get_running_loop()

        def note_news() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(news.set)

        self.on_news = note_news
        while True:
            if counts := self.take_counts():
                await say(interpreter_pb2.InterpreterMessage(kernel_errors=counts))
            pause = self.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), pause)
            await asyncio.sleep(_NEWS_PAUSE)  # to merge many errors into one message
            news.clear()

    def _find(self, call: FailedCall, to_log: list[tuple[FailedCall, int]]) -> _Alike:
        key = (call.operator, call.exception)
        if key not in self._alike and self._classes[call.operator] >= _CLASSES_PER_OPERATOR:
            key = (call.operator, "")
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = _Alike()
            self._classes[call.operator] += 1
        self._alike.move_to_end(key)
        while len(self._alike) > _MOST_REMEMBERED:
            (operator, _), oldest = self._alike.popitem(last=False)
            self._classes[operator] -= 1
            if not self._classes[operator]:
                del self._classes[operator]
            if oldest.left_out:
                to_log.append(_next_line(oldest, oldest.next_at))
        return alike

    def _log(self, lines: list[tuple[FailedCall, int]]) -> None:
        for call, left_out in lines:
            more = f" ({left_out} like it were left out before)" if left_out else ""
            log_regardless(
                LOG,
                call.level,
                call.message + more,
                extra=fields(
                    Event.KERNEL_ERROR,
                    operator=call.operator,
                    library=call.library,
                    version=call.version,
                    interpreter=self._interpreter(),
                    call=call.call,
                    trace=call.trace,
                    exception=call.exception,
                    left_out=left_out,
                    traceback=call.traceback,
                ),
            )


def _next_line(alike: _Alike, now: float) -> tuple[FailedCall, int]:
    """Return the last error of a group, and how many before it were left out."""
    last, alike.last = alike.last, None
    assert last is not None, "a group with left-out errors has a last one"
    return last, alike.log_one(now) - 1
