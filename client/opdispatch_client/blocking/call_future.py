"""The future that ``Session.submit`` returns: its cancellation cancels the call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from opdispatch.errors import OpdispatchError

Callback = Callable[[Future[Any]], object]
RunCallback = Callable[[Callback, Future[Any]], None]
Abandon = Callable[[], object]
"""Releases what a call without a result keeps; must not block."""


class CallFuture(Future[Any]):
    """A call in progress. Any thread may wait for it.

    Its callbacks run in a separate thread, one after the other, because the thread that reads
    replies must not block. ``on_end`` is called once, when the future is done or cancelled; before
    it ``abandon``, unless there is a result.
    """

    def __init__(
        self,
        run_callback: RunCallback,
        on_end: Callable[[], None],
        abandon: Abandon | None = None,
    ) -> None:
        super().__init__()
        self._run_callback = run_callback
        self._ends = [on_end]
        self._abandon = abandon
        self.cancel_call: Callable[[], None] | None = None
        """Cancels the call at the other side; set when the call has begun."""

    def cancel(self) -> bool:
        """Cancel the call, unless it is done; return whether it is cancelled."""
        if not super().cancel():
            return False
        if self._end(abandons=True):
            self._tell_of_cancellation()
            if self.cancel_call is not None:
                self.cancel_call()
        return True

    def add_done_callback(self, fn: Callback) -> None:
        """Call ``fn`` with this future when it is done or cancelled; now, if it already is."""
        if self.done():
            super().add_done_callback(fn)
        else:
            # not ``self``: the result must be freed when its caller releases it
            run = self._run_callback
            super().add_done_callback(lambda future: run(fn, future))

    def succeed(self, result: Any) -> None:
        """End with a result, unless it was cancelled."""
        if self._end():
            try:
                self.set_result(result)
            except InvalidStateError:
                self._tell_of_cancellation()

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it was cancelled."""
        if isinstance(error, OpdispatchError):
            _forget_frames(error)
        if self._end(abandons=True):
            try:
                self.set_exception(error)
            except InvalidStateError:
                self._tell_of_cancellation()

    def _tell_of_cancellation(self) -> None:
        """Notify waiters for several futures. Called by the thread that ended this one."""
        self.set_running_or_notify_cancel()

    def _end(self, *, abandons: bool = False) -> bool:
        """Return whether this is the first end of the future; all later ones are ignored."""
        try:
            on_end = self._ends.pop()  # only one of several threads succeeds
        except IndexError:
            return False
        if abandons and self._abandon is not None:
            self._abandon()
        on_end()
        return True


def _forget_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and of its causes.

    Their frames refer to the arguments of the call, which a stored future would keep alive.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
