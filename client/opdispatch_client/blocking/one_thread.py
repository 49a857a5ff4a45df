"""A thread for work that the submitting thread must not do itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class OneThread:
    """Runs work in order of submission, in one thread, which the first item starts."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        """Submit work to the thread.

        Raises RuntimeError, and never does the work, after ``close`` or if no thread can be
        started.
        """
        item = _Item(work, arguments)
        try:
            self._thread.submit(item.run)
        except RuntimeError:
            # The executor has queued it nonetheless, for a thread that it may start later.
            if item.claim() is not None:
                raise

    def close(self) -> None:
        """Do the work that is queued, and accept no more. Idempotent."""
        self._thread.shutdown(wait=False)


class _Item:
    """One item of work, which only one of several threads can claim."""

    def __init__(self, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._unclaimed = [(work, arguments)]

    def claim(self) -> tuple[Callable[..., object], tuple[object, ...]] | None:
        try:
            return self._unclaimed.pop()  # only one of several threads succeeds
        except IndexError:
            return None

    def run(self) -> None:
        if (claimed := self.claim()) is not None:
            work, arguments = claimed
            work(*arguments)
