"""Results that no GPU has room for, refused before CuPy counts their bytes.

See Note [Sizes that wrap around]. What a result would be is said by the functions for tensors
without elements. They are asked only where it may be large, and so takes longer than that itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from opdispatch.arrays import MetaArray
from opdispatch.arrays.extents import count_elements, is_of_possible_size
from opdispatch.errors import OpdispatchError
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.half_precision import in_float32, refusing_16_bits
from opdispatch.native.array.operators.meta_kernels import META_FUNCTIONS
from opdispatch.native.array.operators.meta_shapes import refusal, show
from opdispatch.native.array.operators.sizes import TOO_MANY

LARGE = 1 << 28
"""Of one array with fewer elements, and of two, nothing is made that has too many."""

SizeCheck = Callable[[Sequence[Any], Mapping[str, Any]], None]


def make_size_check(function: ArrayFunction, on_meta: Kernel | None = None) -> SizeCheck:
    """Return a check that raises ArgumentError if the result would be too large an array.

    ``on_meta`` is the operator's function for tensors without elements, if ``meta_kernels`` has
    none.
    """
    name = function.schema.name.name
    found = on_meta or META_FUNCTIONS[function.operator]
    find_shapes = in_float32(function, found) or refusing_16_bits(function, found)

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if math.prod(map(_most, (*args, *kwargs.values()))) <= LARGE:
            return
        made: Any = None
        # What else is wrong with a call, and what elements decide, is CuPy's to say.
        with suppress(OpdispatchError, TypeError, ValueError, OverflowError):
            options = {key: _without_elements(each) for key, each in kwargs.items()}
            made = find_shapes(*map(_without_elements, args), **options)
        for each in made if isinstance(made, list | tuple) else [made]:
            if isinstance(each, MetaArray) and not is_of_possible_size(each.shape):
                raise refusal(name, f"makes {TOO_MANY}, of shape {show(each.shape)}")

    return check


def _most(argument: Any) -> int:
    """Return the most by which a result may be larger for an argument as large as it can be."""
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
