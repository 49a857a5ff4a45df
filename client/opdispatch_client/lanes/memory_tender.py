"""Says now and then what a session does not use any more, where no call says it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

TEND_SECONDS = 1.0
"""How long, in seconds, unused memory of an interpreter's may stay taken."""


class MemoryTender:
    """A thread that comes with ``wake`` and goes when ``tend`` says that there is nothing to do.

    Guards      ``_lock`` guards ``_is_there``: the thread is there, or no wake-up came after it
                had asked ``tend`` for the last time, or it could not be started: it is, with the
                next ``wake`` that finds a thread.
    """

    def __init__(self, tend: Callable[[], bool]) -> None:
        """Call ``tend`` in a thread; it returns whether it is to be called again."""
        self._tend = tend
        self._lock = threading.Lock()
        self._is_there = False
        self._stopped = threading.Event()

    def wake(self) -> None:
        """Start tending: there is something to do from now on."""
        if self._is_there or self._stopped.is_set():
            return
        with self._lock:
            if self._is_there:
                return
            with contextlib.suppress(RuntimeError):  # of threading: the system's limit is reached
                threading.Thread(target=self._run, name="memory-tender", daemon=True).start()
                self._is_there = True

    def stop(self) -> None:
        """Do nothing more. Idempotent."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(TEND_SECONDS):
            with self._lock:
                if not self._tend():
                    self._is_there = False
                    return
