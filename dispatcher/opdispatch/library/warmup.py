"""Warmup calls, which a library requests before it serves calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class WarmupCall(NamedTuple):
    """A call that a library has requested: the operator's name, and the function to call."""

    operator: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def run(self) -> None:
        """Make the call, and discard its result. Raises the call's error."""
        self.function(*self.args, **self.kwargs)


_collected: ContextVar[list[WarmupCall] | None]
_collected = ContextVar("opdispatch_collected_warmup_calls", default=None)


def run_or_collect(call: WarmupCall) -> None:
    """Make a warmup call now or, within ``collected_warmup_calls``, add it to that list."""
    collected = _collected.get()
    if collected is None:
        call.run()
    else:
        collected.append(call)


@contextmanager
def collected_warmup_calls() -> Iterator[list[WarmupCall]]:
    """Collect the warmup calls that libraries request in the block, in this task."""
    collected: list[WarmupCall] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)
