"""Calls that a library declares to be made before it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class WarmupCall(NamedTuple):
    """One call that a library has declared: the operator's name, and what calls it."""

    operator: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def run(self) -> None:
        """Make the call; raise what it raises. Its result is dropped."""
        self.function(*self.args, **self.kwargs)


_collected: ContextVar[list[WarmupCall] | None]
_collected = ContextVar("opdispatch_collected_warmup_calls", default=None)


def run_or_collect(call: WarmupCall) -> None:
    """Make a call now, or add it to those that this task collects."""
    collected = _collected.get()
    if collected is None:
        call.run()
    else:
        collected.append(call)


@contextmanager
def collected_warmup_calls() -> Iterator[list[WarmupCall]]:
    """Collect the calls that libraries declare in the block, in this task."""
    collected: list[WarmupCall] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)
