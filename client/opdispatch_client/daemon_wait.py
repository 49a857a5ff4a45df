"""The wait for a daemon that restarts: how long, how often, and after which errors. No I/O.

Note [A daemon that restarts]
    A request that has not begun can always be sent again: there was no daemon at the address, or a
    stopping daemon rejected it. A request that was sent but got no reply may have run. It is sent
    again if running it twice is harmless, but a call only once, since a call that kills its daemon
    would kill the next one, too. Whether a request is harmless depends on its method; for a call,
    it depends on the operator's schema, which the next daemon checks because ``CallRequest.lost``
    is set.

    The wait begins with the first failure, and ends after ``Endpoint.wait`` seconds or at the
    deadline of the call or request. Then the last error is raised, with the duration of the wait in
    its message.
"""

from __future__ import annotations

import math
import time

from opdispatch.errors import OpdispatchError
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError
from opdispatch_wire.lanes.lane_messages import LaneClosedError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def has_not_begun(error: Exception) -> bool:
    """Return whether a request failed without being run, because the daemon is away."""
    if isinstance(error, LaneClosedError):
        return not error.was_sent
    return is_stopping(error) or (
        isinstance(error, DaemonUnavailableError) and error.facts.get("daemon") == "away"
    )


def is_stopping(error: Exception) -> bool:
    """Return whether a daemon rejected a request because it is stopping."""
    return isinstance(error, RefusedError) and (
        error.facts.get("daemon") == "stopping"
        # The message of older daemons, which lack the fact; an upgrade stops such a daemon.
        or error.message.startswith("the daemon is stopping; ")
    )


def may_have_run(error: Exception) -> bool:
    """Return whether the connection to the daemon was lost after a request was sent."""
    if isinstance(error, LaneClosedError):
        return error.was_sent
    return isinstance(error, DaemonUnavailableError) and error.facts.get("daemon") == "lost"


class DaemonWait:
    """The wait of one request, or of several requests that need the same lane."""

    def __init__(self, seconds: float, deadline: float | None = None) -> None:
        """Wait at most ``seconds``, and until ``deadline``, by ``time.monotonic``, if not None."""
        self._seconds = seconds
        self._deadline = math.inf if deadline is None else deadline
        self._since: float | None = None
        self._pause = _FIRST_PAUSE
        self._error: OpdispatchError | None = None

    def pause_after(self, error: Exception, *, is_repeatable: bool = False) -> float:
        """Return the seconds until the next attempt. Raises ``error`` if there is none.

        ``is_repeatable`` says that trying again is harmless even if the request has run.
        """
        if not has_not_begun(error) and not (is_repeatable and may_have_run(error)):
            raise error
        now = time.monotonic()
        is_first, self._since = self._since is None, self._since or now
        self._error = error if isinstance(error, OpdispatchError) else None
        left = min(self._since + self._seconds, self._deadline) - now
        if left <= 0:
            raise self.failure() or error
        if is_first and is_stopping(error):  # a daemon that takes over is already listening
            return 0.0
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return min(pause, left)

    def failure(self) -> OpdispatchError | None:
        """Return the last error, with the duration of the wait; None if there was no error."""
        if self._error is None or self._since is None or not self._seconds:
            return self._error
        error, waited = self._error, time.monotonic() - self._since
        return type(error)(
            f"{error.message}; it was waited for {waited:.3g} s",
            hint=error.hint,
            **{**error.facts, "waited": f"{waited:.3f}"},
        )
