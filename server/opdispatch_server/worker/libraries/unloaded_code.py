"""Code of libraries that have gone which something still refers to, and the memory it keeps.

The last call of a library has its answer sent before its thread has released the kernel. What is
collected in that moment misses the kernel, and all that its module has.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from opdispatch_server.process_memory import trim_memory

# What a user's object refers to stays, however often it is collected.
_MOST_TRIES = 3


class UnloadedCode:
    """Any thread may call it; ``_lock`` guards ``_remaining``."""

    def __init__(self, trim: Callable[[], None] = trim_memory) -> None:
        self._trim = trim
        self._lock = threading.Lock()
        # Each library's functions that were alive when it had gone, and the tries that are left.
        self._remaining: list[tuple[list[weakref.ref[Any]], int]] = []

    def note(self, functions: Iterable[weakref.ref[Any]]) -> None:
        """Free the memory of a library with these functions, now and again in ``collect``."""
        self._trim()
        self._keep([*functions], _MOST_TRIES)

    @property
    def remains(self) -> bool:
        """Whether some of it was still alive when it was last collected."""
        return bool(self._remaining)

    def collect(self) -> None:
        """Free what was still in use the last time; it takes a full collection."""
        with self._lock:
            remaining, self._remaining = self._remaining, []
        if remaining:
            self._trim()
        for functions, tries in remaining:
            self._keep(functions, tries - 1)

    def _keep(self, functions: list[weakref.ref[Any]], tries: int) -> None:
        alive = [each for each in functions if each() is not None]
        if alive and tries:
            with self._lock:
                self._remaining.append((alive, tries))


def functions_of(kernels: Iterable[Any]) -> list[weakref.ref[Any]]:
    """Return references to the functions that kernels are made of, which do not keep them."""
    found = []
    for kernel in kernels:
        try:
            found.append(weakref.ref(kernel.function))
        except TypeError:  # None, or of C: it has no module's globals
            continue
    return found
