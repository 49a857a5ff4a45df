"""``functionalize``: a function without writes, out of one that makes them.

As ``torch.func.functionalize``. https://docs.pytorch.org/docs/2.13/generated/torch.func.functionalize.html
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.functorch.dynamic_layer import pushed
from opdispatch.functorch.functionalization.level import Level
from opdispatch.local_state.lazy_imports import array_operators


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return a function that does what ``func`` does without writing to tensors.

    Operators that write are replaced by those that return what would have been written, and views
    are made anew when what they are views of has changed. With ``remove="mutations_and_views"``,
    operators that give views are replaced by those that copy, ``ns::name_copy``. What was written
    to the tensors that ``func`` was given, or has from elsewhere, is copied to them at the end, by
    ``array::copy_``, unless it raises. Tensors in lists, tuples and dicts are found, in arguments
    and results; what is returned shares no elements with what was written to.

    Raises ArgumentError for another ``remove``, and for a generator function. Calls raise
    NoKernelError for an operator that gives views and has no rule for that, and ArgumentError for
    a write to a tensor that shares elements with another one that was given, or that has several
    elements in one place, as ``array::broadcast_to`` gives them.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise ArgumentError(
            f"functionalize can remove 'mutations' or 'mutations_and_views', not {remove!r}"
        )
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ArgumentError(
            "functionalize takes a function that returns, and was given a generator function"
        )
    reapply_views = remove == "mutations"

    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def run(*args: Any, **kwargs: Any) -> Any:
            level = Level(reapply_views=reapply_views)
            args, kwargs = level.functional_of((args, kwargs))
            with pushed(level):
                result = await func(*args, **kwargs)
            return _finish(level, result)

        return run

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        level = Level(reapply_views=reapply_views)
        args, kwargs = level.functional_of((args, kwargs))
        with pushed(level):
            result = func(*args, **kwargs)
        return _finish(level, result)

    return call


def _finish(level: Level, result: Any) -> Any:
    writes = level.writes()  # raises, if at all, before anything is written
    result = level.values_of(result)
    for target, value in writes:
        array_operators().copy_.default(target, value)
    return result
