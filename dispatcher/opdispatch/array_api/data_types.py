"""The element types of the standard, and what is asked of them."""

from __future__ import annotations

import itertools
from typing import Any

import array_api_compat.numpy
import numpy as np

from opdispatch import arrays
from opdispatch.array_api.functions import SCALARS
from opdispatch.array_operators.dtypes import check_pair, check_scalar

# Its own functions are made when it is imported, and unknown to who only reads it.
_COMPAT: Any = array_api_compat.numpy

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    )
}
"""By their names."""


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion turns one type into another, or an array into one of that type."""
    given = from_.dtype if hasattr(from_, "dtype") else from_
    return bool(_COMPAT.can_cast(given, to))


def finfo(type: Any, /) -> Any:
    """What is to be known of a floating-point type, or of an array's."""
    return _COMPAT.finfo(_dtype_of(type))


def iinfo(type: Any, /) -> Any:
    """What is to be known of an integer type, or of an array's."""
    return _COMPAT.iinfo(_dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is of a kind, or of any of several."""
    return bool(_COMPAT.isdtype(dtype, kind))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The type that arrays, types and Python scalars are promoted to.

    Raises ArgumentError where the standard defines none.
    """
    scalars = [each for each in arrays_and_dtypes if type(each) in SCALARS]
    dtypes = [_dtype_of(each) for each in arrays_and_dtypes if type(each) not in SCALARS]
    for one, other in itertools.pairwise(dtypes):
        check_pair("result_type", one, other)
    for scalar in scalars:
        for dtype in dtypes:
            check_scalar("result_type", dtype, scalar)
    return np.result_type(*dtypes, *scalars)


def _dtype_of(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(
        value.dtype if arrays.find_key_bits(value) is not None else value
    )
    return dtype
