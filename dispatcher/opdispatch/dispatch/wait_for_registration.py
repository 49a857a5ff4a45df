"""Waiting for a registration by another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opdispatch.errors import WaitTimeoutError


def wait_until(
    changed: threading.Condition,
    reached: Callable[[], object],
    timeout: float,
    what: str,
    awaited_from: str,
) -> None:
    """Wait until ``reached()`` is true, for at most ``timeout`` seconds.

    ``changed`` must be notified whenever ``reached`` may have become true. Raises WaitTimeoutError,
    which says what was awaited, from whom, and for how long.
    """
    with changed:
        if changed.wait_for(lambda: bool(reached()), timeout):
            return
    raise wait_timeout_error(what, timeout, awaited_from)


def wait_timeout_error(
    what: str, timeout: float, awaited_from: str = "", hint: str = ""
) -> WaitTimeoutError:
    """Return the error for a wait that timed out."""
    expected = awaited_from or "another interpreter"
    return WaitTimeoutError(
        f"waited {timeout:g} s for {what}, which {expected} was expected to register",
        hint=hint or "is it still loading, or did it fail?",
        awaited=what,
        awaited_from=expected,
    )
