"""Traces under way in a task, and the calls that they record.

Mirrors ``torch/csrc/jit/frontend/tracer.h``: while a task has a trace, the key Tracer is in its
local included set, and the kernel there tells the trace of each call. While an operator runs, no
trace is under way: what its kernels call, and what they read of tensors, is its own business.

Traces nest, and each records every call. A new task begins with the traces of its creator, as
with modes; a trace that has ended records nothing more, even in a task that still has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.caller_frames import warn_caller
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator

T = TypeVar("T")
Finish = Callable[[Any], None]
"""Called with the result of a call."""

_TRACER = DispatchKeySet.of(DispatchKey.Tracer)


class TracerWarning(UserWarning):
    """A trace may be wrong for other inputs: something became a constant of the graph.

    As ``torch.jit.TracerWarning``.
    """


class Recorder(Protocol):
    """Recorder of calls: a trace."""

    pre_dispatch: bool
    """Whether it records calls before any other key, and not at the key Tracer."""
    is_over: bool

    def begin(
        self,
        operator: str,
        handle: Operator | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Finish:
        """Begin a call; without a handle, of an operator that this process may not know."""

    def knows(self, value: object) -> bool:
        """Return whether it is a tensor that the graph has: an input, or a call's result."""


_TRACES: ContextVar[tuple[Recorder, ...]] = ContextVar("opdispatch_traces", default=())


traces: Callable[[], tuple[Recorder, ...]] = _TRACES.get
"""Return the traces of this task, outermost first; ended ones may be among them.

No function of Python's: each remote call asks.
"""


def keys_of_traces() -> DispatchKeySet:
    """Return the keys included by this task's traces: of no use in another process."""
    return _TRACER if _TRACES.get() else DispatchKeySet()


@contextmanager
def tracing(recorder: Recorder) -> Iterator[None]:
    """Record the calls of the block by ``recorder``."""
    included, excluded = local_dispatch_key_set()
    if not recorder.pre_dispatch:
        included |= _TRACER
    token = _TRACES.set((*_TRACES.get(), recorder))
    try:
        with ForceDispatchKeyGuard(included, excluded):
            yield
    finally:
        _TRACES.reset(token)


@contextmanager
def without(recorder: Recorder) -> Iterator[None]:
    """Stop recording calls by ``recorder`` in the block; other traces of the task go on."""
    token = _TRACES.set(tuple(each for each in _TRACES.get() if each is not recorder))
    try:
        yield
    finally:
        _TRACES.reset(token)


@contextmanager
def not_tracing() -> Iterator[None]:
    """Stop all traces in the block."""
    included, excluded = local_dispatch_key_set()
    token = _TRACES.set(())
    try:
        with ForceDispatchKeyGuard(included - _TRACER, excluded):
            yield
    finally:
        _TRACES.reset(token)


def record_call(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[[], T]
) -> T:
    """Make a call that goes through no dispatcher of this process, and tell the traces."""
    finish = _begin_call(operator, args, kwargs)
    with not_tracing():
        result = call()
    for each in finish:
        each(result)
    return result


def record_awaited(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[[], Awaitable[T]]
) -> Coroutine[Any, Any, T]:
    """Record an awaitable call like ``record_call``: it is in the graph when its result is there.

    Its arguments are what they are now.
    """
    finish = _begin_call(operator, args, kwargs)

    async def recorded() -> T:
        with not_tracing():
            result = await call()
        for each in finish:
            each(result)
        return result

    return recorded()


def _begin_call(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Callable[[Any], None]]:
    found = [each for each in _TRACES.get() if not each.is_over]
    return [recorder.begin(operator, None, args, kwargs) for recorder in found]


def is_traced(value: object) -> bool:
    """Return whether it is a tensor that a trace of this task has as an input or a result."""
    found = _TRACES.get()
    return bool(found) and any(not each.is_over and each.knows(value) for each in found)


def is_tracing() -> bool:
    """Return whether a trace is under way in this task."""
    return any(not each.is_over for each in _TRACES.get())


def note_reading(value: Any, what: str) -> None:
    """Warn if ``value`` is a tensor of a graph, since Python is about to see what is in it.

    ``what`` says how: ``"bool() of a tensor"``.
    """
    if is_traced(value):
        warn_of_trace(
            f"{what} is recorded as what it is now, a constant: the graph may be wrong for other "
            "inputs"
        )


def warn_of_trace(text: str) -> None:
    """Warn with a TracerWarning at the nearest line of a caller outside of this distribution."""
    warn_caller(text, TracerWarning)
