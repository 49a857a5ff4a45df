"""Find the dtypes of results by calling NumPy with arrays of at most one element."""

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
"""The dtype of indices and counts."""


def compute_dtypes(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[DType, ...]:
    """Return the dtypes of the results of ``function(*arguments)``, computed by calling it.

    Raises ArgumentError for dtypes that it rejects; OverflowError, as on all devices, for a scalar
    out of range of its array's dtype.
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
    """Return the dtypes of the results for arrays of shape ``sample`` and dtypes ``dtypes``."""
    return compute_dtypes(name, function, *(np.ones(sample, dtype) for dtype in dtypes))


def find_dtype(name: str, function: Callable[..., Any], sample: Shape, *dtypes: DType) -> DType:
    """Return the dtype of the only result for arrays of shape ``sample`` and dtypes ``dtypes``."""
    return find_dtypes(name, function, sample, *dtypes)[0]


def find_common_dtype(name: str, *dtypes: DType) -> DType:
    """Return NumPy's promoted dtype. Raises ArgumentError if there is none."""
    try:
        return np.result_type(*dtypes)
    except TypeError as error:
        listed = " and ".join(map(str, dtypes))
        raise refusal(name, f"was given arrays of {listed}, which have no common type") from error
