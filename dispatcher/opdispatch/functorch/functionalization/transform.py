"""``functionalize``: remove in-place writes from a function.

Equivalent to ``torch.func.functionalize``.
https://docs.pytorch.org/docs/2.13/generated/torch.func.functionalize.html
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
    """Return a function equivalent to ``func`` that does not write to tensors in place.

    Mutating operators are replaced by their functional counterparts, and views are regenerated
    after their base has changed. With ``remove="mutations_and_views"``, view operators are replaced
    by ``ns::name_copy``, too. Writes to arguments and captured tensors are copied back with
    ``array::copy_`` when ``func`` returns, but not if it raises. Arguments and results may be
    nested in lists, tuples and dicts; results share no memory with tensors that were written to.

    Raises ArgumentError for any other ``remove``, and for a generator function. Calls raise
    NoKernelError for a view operator without a functionalization rule, and ArgumentError for a
    write to an input that shares memory with another input or overlaps itself, such as a result of
    ``array::broadcast_to``.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise ArgumentError(
            f"functionalize was given remove={remove!r}; expected 'mutations' or "
            "'mutations_and_views'"
        )
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ArgumentError(
            "functionalize was given a generator function; expected one that returns its result"
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
    writes = level.writes()  # all errors are raised here, before anything is written
    result = level.values_of(result)
    for target, value in writes:
        array_operators().copy_.default(target, value)
    return result
