"""Raise for results too large for any array, before CuPy's byte count overflows.

See Note [Sizes that wrap around]. The meta functions compute the shape of the result. They are
called only if it may be large, where the computation itself takes longer than they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from opdispatch.arrays import MetaArray
from opdispatch.arrays.size_limits import count_elements, is_of_possible_size
from opdispatch.errors import OpdispatchError
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.half_precision import in_float32, refusing_16_bits
from opdispatch.native.array.operators.meta_kernels import META_FUNCTIONS
from opdispatch.native.array.operators.meta_shapes import refusal, show
from opdispatch.native.array.operators.sizes import TOO_MANY

LARGE = 1 << 28
"""No result of one or two arrays of at most this many elements can be too large."""

SizeCheck = Callable[[Sequence[Any], Mapping[str, Any]], None]


def make_size_check(function: ArrayFunction, on_meta: Kernel | None = None) -> SizeCheck:
    """Return a check of ``(args, kwargs)`` that raises ArgumentError if the result is too large.

    ``on_meta`` is the operator's meta function if ``META_FUNCTIONS`` has none.
    """
    name = function.schema.name.name
    found = on_meta or META_FUNCTIONS[function.operator]
    find_shapes = in_float32(function, found) or refusing_16_bits(function, found)

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if math.prod(map(_most, (*args, *kwargs.values()))) <= LARGE:
            return
        made: Any = None
        # Leave other errors, and data-dependent shapes, to CuPy.
        with suppress(OpdispatchError, TypeError, ValueError, OverflowError):
            options = {key: _without_elements(each) for key, each in kwargs.items()}
            made = find_shapes(*map(_without_elements, args), **options)
        for each in made if isinstance(made, list | tuple) else [made]:
            if isinstance(each, MetaArray) and not is_of_possible_size(each.shape):
                raise refusal(name, f"makes {TOO_MANY}, of shape {show(each.shape)}")

    return check


def _most(argument: Any) -> int:
    """Return an upper bound of the factor that an argument contributes to the result's size."""
    if hasattr(argument, "shape"):
        return count_elements(argument.shape)
    if isinstance(argument, list | tuple):
        return math.prod(map(_most, argument))
    return max(abs(argument), 1) if isinstance(argument, int) else 1


def _without_elements(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_without_elements(each) for each in argument]
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return MetaArray(tuple(argument.shape), argument.dtype)
    return argument
