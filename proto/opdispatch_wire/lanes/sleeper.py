"""A lock that wakes who acquires it when somebody releases it."""

from __future__ import annotations

import contextlib
import threading


def sleeper() -> threading.Lock:
    """One that nobody has released yet."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(lock: threading.Lock | None) -> None:
    """Release it, unless it is None, or released already."""
    if lock is not None:
        with contextlib.suppress(RuntimeError):
            lock.release()
