"""The threads that run the kernels of calls over gRPC streams."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from opdispatch_server.call_context import KERNEL_THREADS


class KernelPool:
    """Threads that run kernels, ``size`` at most; one that has been started stays."""

    def __init__(self, size: int, name: str) -> None:
        self._has_thread = threading.Event()
        self._threads = ThreadPoolExecutor(
            size, thread_name_prefix=name, initializer=self._has_thread.set
        )

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        """Submit work to the threads: the first one free if no other can be started.

        Raises RuntimeError if there is none at all; a thread that is started later finds the work
        in the queue nevertheless.
        """
        try:
            self._threads.submit(work, *arguments)
        except RuntimeError:  # of threading: the system's limit is reached
            if not self._has_thread.is_set():
                raise


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
