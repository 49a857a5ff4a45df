"""Release a session's unused shared memory when no calls are made that would release it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

TEND_SECONDS = 1.0
"""Longest time in seconds until unused memory of an interpreter is released."""


class IdleMemoryThread:
    """A thread that starts with ``wake`` and ends when ``tend`` has nothing left to do.

    Guards      ``_lock`` guards ``_is_there``, which tells whether the thread runs, and is held
                during ``tend``. If the thread could not be started, the next ``wake`` tries again.
    Order       ``wake`` sets ``_is_awaited`` before it reads ``_is_there`` without the lock; the
                thread clears ``_is_there`` before it reads ``_is_awaited``. So one of them sees
                the other, and no ``wake`` during the last ``tend`` is missed.
    """

    def __init__(self, tend: Callable[[], bool]) -> None:
        """Store ``tend``, which is called in a thread and returns whether to call it again."""
        self._tend = tend
        self._lock = threading.Lock()
        self._is_there = self._is_awaited = False
        self._stopped = threading.Event()

    def wake(self) -> None:
        """Start the thread if it does not run: there is memory to release from now on."""
        self._is_awaited = True
        if self._is_there or self._stopped.is_set():
            return
        with self._lock:
            if self._is_there:
                return
            with contextlib.suppress(RuntimeError):  # no thread: the system's limit is reached
                threading.Thread(target=self._run, name="memory-tender", daemon=True).start()
                self._is_there = True

    def stop(self) -> None:
        """Stop for good. Idempotent."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(TEND_SECONDS):
            with self._lock:
                self._is_awaited = False
                if not self._tend():
                    self._is_there = False
                    if not self._is_awaited:
                        return
                    self._is_there = True
