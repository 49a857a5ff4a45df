"""A lock that wakes its acquirer when it is released."""

from __future__ import annotations

import contextlib
import threading


def sleeper() -> threading.Lock:
    """Return a lock that has not been released yet."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(lock: threading.Lock | None) -> None:
    """Release it, unless it is None, or released already."""
    if lock is not None:
        with contextlib.suppress(RuntimeError):
            lock.release()
