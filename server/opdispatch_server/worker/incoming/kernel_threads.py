"""The threads that run the kernels of calls over gRPC streams."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.kernels")

_Work = tuple[Callable[..., None], tuple[Any, ...]]


class _KernelThread:
    """One thread of a pool. ``work`` is set before ``wake`` is released."""

    __slots__ = ("wake", "work")

    def __init__(self, work: _Work) -> None:
        self.work: _Work | None = work
        self.wake = threading.Lock()
        self.wake.acquire()


class KernelPool:
    """Threads that run kernels, ``size`` at most; one that has been started stays.

    Leaner than ``concurrent.futures``, whose futures cost more than a small kernel. ``_lock``
    protects all of it: work waits only while ``size`` threads run, or no other can be started, and
    the next of these to end takes it.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._count = 0
        # The last one to rest works first: its memory is in the caches.
        self._idle: list[_KernelThread] = []
        self._waiting: deque[_Work] = deque()

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        """Run work in a thread: the first one free if no other can be started.

        Raises RuntimeError if there is none at all.
        """
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
                thread.work = work, arguments
                thread.wake.release()
            elif self._count == self._size or not self._start((work, arguments)):
                self._waiting.append((work, arguments))

    def _start(self, work: _Work) -> bool:
        """Begin work in a new thread; return False if it is to wait for another one."""
        name = f"{self._name}_{self._count}"
        thread = threading.Thread(
            target=self._run, args=(_KernelThread(work),), name=name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # of threading: the system's limit is reached
            if not self._count:
                raise
            return False
        self._count += 1
        return True

    def _run(self, thread: _KernelThread) -> None:
        while True:
            work, arguments = thread.work or self._next(thread)
            thread.work = None
            try:
                work(*arguments)
            except BaseException:
                extra = fields(Event.INTERNAL_ERROR)
                LOG.exception("a thread has failed to run a kernel", extra=extra)
            del work, arguments  # it may be long until the next call comes

    def _next(self, thread: _KernelThread) -> _Work:
        """Return the next work for a thread that has none."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(thread)
        thread.wake.acquire()
        assert thread.work is not None, "submit sets it first"
        return thread.work


class KernelThreads:
    """The threads in which an interpreter runs what comes over streams."""

    def __init__(self) -> None:
        # No limit: libraries say how many of their calls run at a time.
        self.with_turn = KernelPool(sys.maxsize, "kernel")
        """For calls whose turn it is in their library."""
        self._by_depth: dict[int, KernelPool] = {}

    def at_depth(self, depth: int) -> KernelPool:
        """Return the pool for calls that kernels make, which take no turn; see ``call_context``."""
        pool = self._by_depth.get(depth)
        if pool is None:
            pool = KernelPool(KERNEL_THREADS, f"kernel-{depth}")
            self._by_depth[depth] = pool
        return pool
