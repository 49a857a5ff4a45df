"""The active traces of a task, which record its operator calls.

Mirrors ``torch/csrc/jit/frontend/tracer.h``: while a task has a trace, the key Tracer is in its
local included set, and the kernel for that key records each call. Tracing is suspended while an
operator runs, so calls made by its kernels, and elements they read, are not recorded.

Traces nest, and each one records every call. A new task inherits its creator's traces, as with
modes. A trace that has ended records nothing more, even in a task that still holds it.
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
    """Warns that a value became a constant of the graph, which may be wrong for other inputs.

    As ``torch.jit.TracerWarning``.
    """


class Recorder(Protocol):
    """A trace, which records calls."""

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
        """Record the start of a call; return a function to call with its result.

        ``handle`` is None if the operator may not be defined in this process.
        """

    def knows(self, value: object) -> bool:
        """Return whether ``value`` is a tensor of the graph: an input, or the result of a call."""


_TRACES: ContextVar[tuple[Recorder, ...]] = ContextVar("opdispatch_traces", default=())


traces: Callable[[], tuple[Recorder, ...]] = _TRACES.get
"""Return the traces of this task, outermost first; may include traces that have ended.

Not a Python function, for speed: each remote call reads the traces.
"""


def keys_of_traces() -> DispatchKeySet:
    """Return the keys that this task's traces include; they must not be sent to other processes."""
    return _TRACER if _TRACES.get() else DispatchKeySet()


@contextmanager
def tracing(recorder: Recorder) -> Iterator[None]:
    """Record the calls of the block with ``recorder``."""
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
    """Stop recording with ``recorder`` in the block; other traces of the task continue."""
    token = _TRACES.set(tuple(each for each in _TRACES.get() if each is not recorder))
    try:
        yield
    finally:
        _TRACES.reset(token)


@contextmanager
def not_tracing() -> Iterator[None]:
    """Suspend all traces of the task in the block."""
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
    """Make a call that bypasses this process's dispatcher, and record it in the traces."""
    finish = _begin_call(operator, args, kwargs)
    with not_tracing():
        result = call()
    for each in finish:
        each(result)
    return result


def record_awaited(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[[], Awaitable[T]]
) -> Coroutine[Any, Any, T]:
    """Make and record an awaitable call, like ``record_call``.

    The arguments are recorded now; the call is added to the graph when its result is available.
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
    """Return whether ``value`` is an input or a result in a trace of this task."""
    found = _TRACES.get()
    return bool(found) and any(not each.is_over and each.knows(value) for each in found)


def is_tracing() -> bool:
    """Return whether a trace is active in this task."""
    return any(not each.is_over for each in _TRACES.get())


def note_reading(value: Any, what: str) -> None:
    """Warn if ``value`` is a tensor of a graph whose elements Python code is about to read.

    ``what`` describes the access, such as ``"bool() of a tensor"``.
    """
    if is_traced(value):
        warn_of_trace(
            f"{what} is recorded as a constant with its current value: the graph may be wrong for "
            "other inputs"
        )


def warn_of_trace(text: str) -> None:
    """Warn with a TracerWarning at the nearest line of a caller outside of this distribution."""
    warn_caller(text, TracerWarning)
