"""The dtypes of the array API standard, and its data type functions."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy
import ml_dtypes
import numpy as np

from opdispatch import arrays
from opdispatch.array_api.functions import SCALARS
from opdispatch.errors import ArgumentError
from opdispatch.native.array.operators.type_promotion import (
    check_pair,
    check_scalar,
    kind_of_numbers,
)

# array_api_compat creates its functions at import time, so type checkers do not see them.
_COMPAT: Any = array_api_compat.numpy
# ml_dtypes has no type annotations for these.
_ML_DTYPES: Any = ml_dtypes

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    )
}
"""The standard's dtypes by name."""

_USER_DEFINED = 2  # ``numpy.dtype.isbuiltin`` of dtypes registered by other libraries
_LIKE = {"f": np.float32, "i": np.int8, "u": np.uint8, "W": np.complex64}
"""A NumPy dtype of each kind that ``kind_of_numbers`` returns."""


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Result of ``finfo``, as Python numbers; for a complex dtype, the limits of its components."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class IntegerInfo:
    """Result of ``iinfo``."""

    bits: int
    max: int
    min: int
    dtype: np.dtype[Any]


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype, or an array's dtype, can be cast to ``to`` by type promotion."""
    given, wanted = _dtype_of(from_), _dtype_of(to)
    try:
        return result_type(given, wanted) == wanted
    except TypeError:  # raised by NumPy for some ml_dtypes
        return False


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating-point dtype or array; for complex ones, of their components.

    Raises ArgumentError for other dtypes.
    """
    dtype = _dtype_of(type)
    try:
        info = _ML_DTYPES.finfo(dtype)
    except ValueError as error:
        raise ArgumentError(
            f"finfo requires a floating-point or complex dtype, not {dtype}"
        ) from error
    return FloatInfo(
        bits=int(info.bits),
        eps=float(info.eps),
        max=float(info.max),
        min=float(info.min),
        smallest_normal=float(info.smallest_normal),
        dtype=np.dtype(info.dtype),
    )


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer dtype or array. Raises ArgumentError for other dtypes."""
    dtype = _dtype_of(type)
    try:
        info = _ML_DTYPES.iinfo(dtype)
    except ValueError as error:
        raise ArgumentError(f"iinfo requires an integer dtype, not {dtype}") from error
    return IntegerInfo(bits=int(info.bits), max=int(info.max), min=int(info.min), dtype=dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether ``dtype`` is of the given kind, or of any kind in a tuple.

    A dtype of ml_dtypes belongs to the kind of its values: bfloat16 is "real floating". Raises
    TypeError or ValueError for an invalid dtype or kind.
    """
    own = _of_ml_dtypes(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    types = [each for each in kinds if type(each) is not str]
    others = [each for each in map(_of_ml_dtypes, types) if each is not None]
    if own is None and not others:
        return bool(_COMPAT.isdtype(dtype, kind))
    asked = dtype if own is None else np.dtype(_LIKE[kind_of_numbers(own)])
    of_numpy = tuple(each for each in kinds if _of_ml_dtypes(each) is None)
    is_alike = bool(_COMPAT.isdtype(asked, of_numpy))  # raises for invalid kinds
    if own is None:
        return is_alike
    names = tuple(each for each in of_numpy if isinstance(each, str))
    return own in others or bool(_COMPAT.isdtype(asked, names))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype to which arrays, dtypes and Python scalars are promoted.

    Raises ArgumentError where the standard leaves promotion undefined and, like other libraries,
    ValueError if all arguments are Python scalars.
    """
    dtypes = [_dtype_of(each) for each in arrays_and_dtypes if type(each) not in SCALARS]
    if not dtypes:
        raise ValueError("result_type takes at least one array or type")
    common = dtypes[0]
    for dtype in dtypes:
        check_pair("result_type", common, dtype)
        common = np.result_type(common, dtype)
    scalars = [each for each in arrays_and_dtypes if type(each) in SCALARS]
    for scalar in scalars:
        check_scalar("result_type", common, scalar)
    return np.result_type(common, *scalars)


def _dtype_of(value: Any) -> np.dtype[Any]:
    if value is None:  # np.dtype(None) is float64
        raise ArgumentError("None is neither an array nor a type")
    try:
        dtype: np.dtype[Any] = np.dtype(
            value.dtype if arrays.find_key_bits(value) is not None else value
        )
    except TypeError as error:
        raise ArgumentError(f"{reprlib.repr(value)} is neither an array nor a type") from error
    return dtype


def _of_ml_dtypes(value: Any) -> np.dtype[Any] | None:
    """Return a dtype of ml_dtypes, given the dtype or its scalar type; None for other values."""
    if isinstance(value, np.dtype):
        return value if value.isbuiltin == _USER_DEFINED else None
    is_its = isinstance(value, type) and value.__module__ == ml_dtypes.__name__
    return np.dtype(value) if is_its else None
