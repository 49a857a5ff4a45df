"""Checks that results of ``custom_op`` are new memory, or exactly the mutated arguments.

Mirrors the checks of ``backend_impl`` in ``torch/_library/custom_ops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opdispatch.errors import ReturnError
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.tag import Tag
from opdispatch.tensors.tensor import Tensor

Check = Callable[[Sequence[Any], Mapping[str, Any], Any], None]
"""Checks a kernel's results against the arguments of the call. Raises ReturnError."""


def result_check(schema: FunctionSchema, tags: Sequence[str]) -> Check:
    """Return the check for kernels of an operator with that schema and these tags."""
    name = str(schema.name)
    if Tag.inplace in tags:
        return lambda args, kwargs, result: _check_is_first(name, args, result)
    if Tag.out in tags:
        written = [each.name for each in schema.arguments if each.is_write]
        return lambda args, kwargs, result: _check_is_out(name, written, kwargs, result)
    return lambda args, kwargs, result: _check_memory(schema, (*args, *kwargs.values()), result)


def _check_is_first(name: str, args: Sequence[Any], result: Any) -> None:
    if not args or result is not args[0]:
        raise ReturnError(
            f"the kernel of {name}, which has the tag 'inplace', returned another value than its "
            "first argument",
            operator=name,
        )


def _check_is_out(name: str, written: list[str], kwargs: Mapping[str, Any], result: Any) -> None:
    results = (result,) if len(written) == 1 else result
    is_list = isinstance(results, tuple | list) and len(results) == len(written)
    if not is_list or any(each is not kwargs[n] for each, n in zip(results, written, strict=True)):
        raise ReturnError(
            f"the kernel of {name}, which has the tag 'out', returned another value than its "
            f"keyword-only arguments that it writes to, {', '.join(written)}",
            operator=name,
        )


def _check_memory(schema: FunctionSchema, arguments: Sequence[Any], result: Any) -> None:
    name = str(schema.name)
    results = result if isinstance(result, tuple) else (result,)
    given = list(_arrays(arguments))
    new: list[Any] = []
    for declared, each in zip(schema.returns, results, strict=False):
        if declared.alias_info is None:
            new += _arrays(each)
    for place, made in enumerate(new):
        for other in given:
            if _share(made, other):
                raise _refusal(name, "returned an argument, or what shares its memory")
        for other in new[:place]:
            if _share(made, other):
                raise _refusal(name, "returned two values that share memory")


def _refusal(name: str, what: str) -> ReturnError:
    return ReturnError(f"the kernel of {name} {what}", hint="return a copy", operator=name)


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _arrays(each)
    elif isinstance(value, Tensor):
        yield value.array
    elif hasattr(type(value), "shape"):
        yield value


def _share(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same object or, for NumPy arrays, may share memory."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one is other or np.may_share_memory(one, other)
    return one is other
