"""A thread for what must not be done where it comes up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class OneThread:
    """Does one thing after the other in a thread of its own, which the first of them starts."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        """Submit work to the thread.

        Raises RuntimeError, and never does it, after ``close`` or if no thread can be started.
        """
        item = _Item(work, arguments)
        try:
            self._thread.submit(item.run)
        except RuntimeError:
            # The executor has it in its queue nevertheless, for a thread that is started later.
            if item.claim() is not None:
                raise

    def close(self) -> None:
        """Do what there is, and nothing else. Idempotent."""
        self._thread.shutdown(wait=False)


class _Item:
    """One item of work. Only one of the threads that claim it gets it."""

    def __init__(self, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._unclaimed = [(work, arguments)]

    def claim(self) -> tuple[Callable[..., object], tuple[object, ...]] | None:
        try:
            return self._unclaimed.pop()  # which one of several threads can
        except IndexError:
            return None

    def run(self) -> None:
        if (claimed := self.claim()) is not None:
            work, arguments = claimed
            work(*arguments)
