"""Functions called when a library is unloaded, for instance to close files or release a device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

LOG = logging.getLogger("opdispatch.library")

_collected: ContextVar[list[UnloadHooks] | None]
_collected = ContextVar("opdispatch_collected_unload_hooks", default=None)


class UnloadHooks:
    """The functions of one ``Library``. Thread-safe: ``_lock`` protects both fields.

    Each function is called once, the last added first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: list[Callable[[], object]] = []
        self._has_run = False
        collected = _collected.get()
        if collected is not None:
            collected.append(self)

    def add(self, function: Callable[[], object]) -> bool:
        """Add a function for ``run`` to call; return False if ``run`` has been called."""
        with self._lock:
            if not self._has_run:
                self._functions.append(function)
            return not self._has_run

    def run(self) -> None:
        """Call the functions; log their errors. Idempotent."""
        with self._lock:
            self._has_run = True
        while True:
            with self._lock:
                if not self._functions:
                    return
                function = self._functions.pop()
            try:
                function()
            # SystemExit, too: the other functions must still be called
            except BaseException as error:
                name = getattr(function, "__qualname__", repr(function))
                LOG.error("on_unload of a library: %s raised", name, exc_info=error)
                if isinstance(error, KeyboardInterrupt):
                    raise

    def __bool__(self) -> bool:
        return bool(self._functions)


@contextmanager
def collected_unload_hooks() -> Iterator[list[UnloadHooks]]:
    """Collect the hooks of the libraries that are created in the block, in this task."""
    collected: list[UnloadHooks] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def run_unload_hooks(hooks: Sequence[UnloadHooks], seconds: float) -> bool:
    """Call the functions of several libraries; return whether they ended within ``seconds``.

    A function that takes longer continues in its thread, and the remaining ones run after it.
    """
    if not any(hooks):
        for each in hooks:
            each.run()
        return True

    def run() -> None:
        for each in reversed(hooks):
            each.run()

    thread = threading.Thread(target=run, name="on_unload", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
