"""Check for sizes beyond those of any array, and recognize libraries' errors about them.

NumPy's 64-bit sizes wrap around: ``repeat`` of four elements 2**62 times writes beyond an empty
array, which crashes the process, and ``arange(2**63 - 1)`` is empty. NumPy raises for most others,
with different messages. CuPy raises for hardly any: see ``gpu_sizes``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.size_limits import MOST_ELEMENTS, count_elements
from opdispatch.native.array.operators.meta_shapes import refusal, show


def check_repeats(x: Any, repeats: Any, axis: int | None) -> None:
    """Raise ArgumentError if ``repeat`` would make too many elements, or for negative counts."""
    numbers = np.asarray(repeats)
    if numbers.min(initial=0) < 0:
        raise refusal("repeat", f"cannot repeat elements {numbers.min()} times")
    total = float(numbers.sum(dtype=np.float64))
    if numbers.size == 1:  # the count of every element
        extents = x.shape if axis is None else x.shape[axis : axis + 1 or None]
        total *= math.prod(extents)
    others: Sequence[int] = ()
    if axis is not None and x.shape:
        others = [n for place, n in enumerate(x.shape) if place != axis % len(x.shape)]
    if total * count_elements(others) > MOST_ELEMENTS:
        raise refusal("repeat", f"of {show(x.shape)} makes {TOO_MANY}")


def check_tiles(x: Any, repetitions: Sequence[int]) -> None:
    """Raise ArgumentError if ``tile`` would make too many elements."""
    if x.size * math.prod(repetitions) > MOST_ELEMENTS:
        raise refusal("tile", f"of {show(x.shape, repetitions)} makes {TOO_MANY}")


def check_range(start: Any, stop: Any = None, step: Any = 1, **options: Any) -> None:
    """Raise ArgumentError if ``arange`` would make too many elements, or has no length (NaN)."""
    first, last = (0, start) if stop is None else (start, stop)
    count = (last - first) / step
    if count > MOST_ELEMENTS:
        raise refusal("arange", f"from {first!r} to {last!r} by {step!r} makes {TOO_MANY}")
    if not math.isfinite(count):
        raise refusal("arange", f"from {first!r} to {last!r} by {step!r} has no length")


def check_points(start: Any, stop: Any, num: int, **options: Any) -> None:
    """Raise ArgumentError if ``linspace`` would make too many elements."""
    if num > MOST_ELEMENTS:
        raise refusal("linspace", f"of {num} points makes {TOO_MANY}")


def is_of_no_array(error: Exception, numbers: Iterable[Any]) -> bool:
    """Return whether a library's error is about a size or axis that no array can have.

    ``numbers`` are the axes and counts passed, or sequences of them: they tell its OverflowError
    from that for a scalar out of range of its array's dtype.
    """
    if type(error) is OverflowError:
        return any(_is_beyond_int(each) for each in numbers)
    text = str(error).lower()
    is_of_size = type(error) in (ValueError, IndexError, RuntimeError)
    return is_of_size and any(each in text for each in _REFUSALS)


def _is_beyond_int(number: Any) -> bool:
    """Return whether a number, or any of a sequence, does not fit a C ``int``."""
    if isinstance(number, Sequence):
        return any(map(_is_beyond_int, number))
    return isinstance(number, int) and not -(2**31) <= number < 2**31


# Lower case, compared with lowered messages.
_REFUSALS = (
    "array is too big",
    "iterator is too large",
    "dimensions too large",
    "allowed dimension exceeded",
    "allowed size exceeded",
    "negative dimensions",
    "must be non-negative",
    "maximum supported dimension",
    "only supports up to",
    "number of dimensions must be within",
    "ndmin must be",
    "fit into a c int",
    "with num<0",
)
"""Parts of NumPy's and CuPy's messages about sizes and axes, which have no class of their own."""

TOO_MANY = "more elements than an array can have"
