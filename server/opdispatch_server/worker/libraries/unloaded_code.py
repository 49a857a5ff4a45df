"""The code of unloaded libraries that is still referenced, and the memory it occupies.

The reply to a library's last call is sent before its thread has released the kernel. A collection
at that moment does not free the kernel, nor anything its module refers to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from opdispatch_server.process_memory import trim_memory

# How often to collect: code that a user's object refers to is never freed.
_MOST_TRIES = 3


class UnloadedCode:
    """The unloaded libraries whose code is still alive. Any thread may use it.

    ``_lock`` guards ``_remaining``.
    """

    def __init__(self, trim: Callable[[], None] = trim_memory) -> None:
        self._trim = trim
        self._lock = threading.Lock()
        # For each library, its functions that were alive after it was unloaded, and the attempts
        # left.
        self._remaining: list[tuple[list[weakref.ref[Any]], int]] = []

    def note(self, functions: Iterable[weakref.ref[Any]]) -> None:
        """Free the memory of a library with these functions, now and again in ``collect``."""
        self._trim()
        self._keep([*functions], _MOST_TRIES)

    @property
    def remains(self) -> bool:
        """Whether some of it was still alive at the last collection."""
        return bool(self._remaining)

    def collect(self) -> None:
        """Free what was still in use the last time, with a full collection."""
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
    """Return weak references to the functions that kernels are made of."""
    found = []
    for kernel in kernels:
        try:
            found.append(weakref.ref(kernel.function))
        except TypeError:  # None, or a C function: it has no module's globals
            continue
    return found
