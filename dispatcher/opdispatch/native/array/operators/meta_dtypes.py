"""The dtypes of results, asked of NumPy with arrays of no element or one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from opdispatch.native.array.operators.meta_shapes import Shape, refusal

DType: TypeAlias = np.dtype[Any]

NO_ELEMENT: Shape = (0,)
ONE_ELEMENT: Shape = (1,)
ONE_BY_ONE: Shape = (1, 1)

INDEX = np.dtype(np.intp)
"""The dtype of positions and counts."""


def compute_dtypes(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[DType, ...]:
    """Compute the dtypes of the function's results. Raises ArgumentError where it refuses.

    OverflowError, of a scalar that is too large for its array's type, is the same on all devices.
    """
    try:
        with np.errstate(all="ignore"):
            results = function(*arguments)
    except (TypeError, ValueError) as error:
        described = " and ".join(
            str(each.dtype) if isinstance(each, np.ndarray) else repr(each) for each in arguments
        )
        raise refusal(name, f"is not defined for {described}") from error
    if not isinstance(results, tuple | list):
        results = (results,)
    return tuple(np.asarray(result).dtype for result in results)


@lru_cache(maxsize=4096)
def find_dtypes(
    name: str, function: Callable[..., Any], sample: Shape, *dtypes: DType
) -> tuple[DType, ...]:
    """Return the dtypes of the function's results for arrays of that shape and of those dtypes."""
    return compute_dtypes(name, function, *(np.ones(sample, dtype) for dtype in dtypes))


def find_dtype(name: str, function: Callable[..., Any], sample: Shape, *dtypes: DType) -> DType:
    """Return the dtype of the one array that the function returns."""
    return find_dtypes(name, function, sample, *dtypes)[0]


def find_common_dtype(name: str, *dtypes: DType) -> DType:
    """Return NumPy's promoted dtype. Raises ArgumentError if there is none."""
    try:
        return np.result_type(*dtypes)
    except TypeError as error:
        listed = " and ".join(map(str, dtypes))
        raise refusal(name, f"was given arrays of {listed}, which have no common type") from error
