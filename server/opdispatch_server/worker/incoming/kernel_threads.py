"""Threads that run the kernels of calls over gRPC streams."""

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
    """One thread of a pool. It waits for ``wake``; ``work`` is set before that is released."""

    __slots__ = ("wake", "work")

    def __init__(self, work: _Work) -> None:
        self.work: _Work | None = work
        self.wake = threading.Lock()
        self.wake.acquire()


class KernelPool:
    """A pool of at most ``size`` threads that run kernels. Threads are never ended. Thread-safe.

    Not ``concurrent.futures``, whose futures cost more than a small kernel. ``_lock`` protects all
    fields. Work is queued only while ``size`` threads are busy or no other can be started; the next
    thread to finish takes it.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._lock = threading.Lock()
        self._count = 0
        # A stack: the thread that rested last works first, as its memory is still in the caches.
        self._idle: list[_KernelThread] = []
        self._waiting: deque[_Work] = deque()

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        """Run work in an idle or a new thread, or queue it for the next thread that is free.

        Raises RuntimeError if the pool has no thread and none can be started.
        """
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
                thread.work = work, arguments
                thread.wake.release()
            elif self._count == self._size or not self._start((work, arguments)):
                self._waiting.append((work, arguments))

    def _start(self, work: _Work) -> bool:
        """Begin work in a new thread; return False if it has to be queued. ``_lock`` is held."""
        name = f"{self._name}_{self._count}"
        thread = threading.Thread(
            target=self._run, args=(_KernelThread(work),), name=name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no thread: the system's limit is reached
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
                LOG.exception("a thread failed to run a kernel", extra=extra)
            del work, arguments  # the next call may come much later

    def _next(self, thread: _KernelThread) -> _Work:
        """Return the next work for a thread; block while there is none."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(thread)
        thread.wake.acquire()
        assert thread.work is not None, "submit sets it first"
        return thread.work


class KernelThreads:
    """The thread pools for an interpreter's calls over streams."""

    def __init__(self) -> None:
        # Unlimited: the turns of libraries limit how many of their calls run at a time.
        self.with_turn = KernelPool(sys.maxsize, "kernel")
        """The pool for calls whose turn in their library has come."""
        self._by_depth: dict[int, KernelPool] = {}

    def at_depth(self, depth: int) -> KernelPool:
        """Return the pool for nested calls of that depth, which take no turn: see ``call_context``.

        Each depth has its own, so that calls which wait for deeper ones cannot take their threads.
        """
        pool = self._by_depth.get(depth)
        if pool is None:
            pool = KernelPool(KERNEL_THREADS, f"kernel-{depth}")
            self._by_depth[depth] = pool
        return pool
