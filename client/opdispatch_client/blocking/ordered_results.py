"""The iterator that ``Session.map`` returns: results in the order of calls, some in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Self

from opdispatch_client.map_arguments import arguments_of_calls, check_in_flight

Submit = Callable[[tuple[Any, ...]], Future[Any]]


class OrderedResults(Iterator[Any]):
    """An iterator; ``close``, or the end of a ``with`` block, cancels the calls in flight.

    Calls begin in batches of a quarter of ``in_flight``, so that they are sent together.
    """

    def __init__(
        self,
        submit: Submit,
        flush: Callable[[], None],
        arguments: Iterable[Iterable[Any]],
        in_flight: int,
    ) -> None:
        self._under_way: deque[Future[Any]] = deque()
        self._submit = submit
        self._flush = flush
        self._in_flight = check_in_flight(in_flight)
        self._arguments = arguments_of_calls(arguments)
        self._at_once = max(in_flight // 4, 1)
        # All calls run with the modes that were active when the iterator was made.
        self._context = copy_context()
        self._begin_some()

    def __next__(self) -> Any:
        if len(self._under_way) <= self._in_flight - self._at_once:
            self._begin_some()
        if not self._under_way:
            raise StopIteration
        try:
            result = self._under_way[0].result()
        except BaseException:
            self.close()
            raise
        self._under_way.popleft()
        return result

    def close(self) -> None:
        """Cancel the calls in flight; begin no others. Idempotent."""
        self._arguments = iter(())
        while self._under_way:
            self._under_way.pop().cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_arguments"):  # otherwise the constructor raised
            self.close()

    def _begin_some(self) -> None:
        try:
            while len(self._under_way) < self._in_flight:
                try:
                    arguments = next(self._arguments)
                except StopIteration:
                    return
                self._under_way.append(self._context.run(self._submit, arguments))
        finally:
            self._flush()
