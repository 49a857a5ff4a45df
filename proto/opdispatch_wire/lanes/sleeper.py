"""A lock that wakes its acquirer when it is released."""

from __future__ import annotations

import contextlib
import threading


def sleeper() -> threading.Lock:
    """Return an acquired lock: acquiring it again blocks until ``wake``."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def wake(lock: threading.Lock | None) -> None:
    """Release a lock, unless it is None or released already."""
    if lock is not None:
        with contextlib.suppress(RuntimeError):
            lock.release()
