"""The element types of the standard, and what is asked of them."""

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
from opdispatch.native.array.operators.dtypes import check_pair, check_scalar, kind_of_numbers

# Its own functions are made when it is imported, and unknown to who only reads it.
_COMPAT: Any = array_api_compat.numpy
# Of whose functions no types are known.
_ML_DTYPES: Any = ml_dtypes

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    )
}
"""By their names."""

_USER_DEFINED = 2  # what ``numpy.dtype.isbuiltin`` says of types that others have registered
_LIKE = {"f": np.float32, "i": np.int8, "u": np.uint8, "W": np.complex64}
"""A type of NumPy's of the same kind, by ``kind_of_numbers``."""


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Result of ``finfo``: Python's numbers, for the real numbers in ``dtype``."""

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
    """Return whether promotion turns one type into another, or an array into one of that type."""
    given, wanted = _dtype_of(from_), _dtype_of(to)
    try:
        return result_type(given, wanted) == wanted
    except TypeError:  # NumPy's own for some types of ml_dtypes
        return False


def finfo(type: Any, /) -> FloatInfo:
    """Describe a floating-point dtype, or an array's; for a complex one, its parts.

    Raises ArgumentError for other types.
    """
    dtype = _dtype_of(type)
    try:
        info = _ML_DTYPES.finfo(dtype)
    except ValueError as error:
        raise ArgumentError(
            f"finfo is asked about types of floating-point numbers, not {dtype}"
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
    """Describe an integer dtype, or an array's.

    Raises ArgumentError for other types.
    """
    dtype = _dtype_of(type)
    try:
        info = _ML_DTYPES.iinfo(dtype)
    except ValueError as error:
        raise ArgumentError(f"iinfo is asked about types of integers, not {dtype}") from error
    return IntegerInfo(bits=int(info.bits), max=int(info.max), min=int(info.min), dtype=dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a type is of a kind, or of any of several.

    Those of ml_dtypes, such as bfloat16, are of the kind of their numbers. Raises TypeError and
    ValueError for anything but a type or a kind.
    """
    own = _of_ml_dtypes(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    types = [each for each in kinds if type(each) is not str]
    others = [each for each in map(_of_ml_dtypes, types) if each is not None]
    if own is None and not others:
        return bool(_COMPAT.isdtype(dtype, kind))
    asked = dtype if own is None else np.dtype(_LIKE[kind_of_numbers(own)])
    of_numpy = tuple(each for each in kinds if _of_ml_dtypes(each) is None)
    is_alike = bool(_COMPAT.isdtype(asked, of_numpy))  # which knows which are not kinds
    if own is None:
        return is_alike
    names = tuple(each for each in of_numpy if isinstance(each, str))
    return own in others or bool(_COMPAT.isdtype(asked, names))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the type that arrays, types and Python scalars are promoted to.

    Raises ArgumentError where the standard defines none, and ValueError, as other libraries do,
    where there are only scalars.
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
    if value is None:  # which is float64 to NumPy
        raise ArgumentError("None is neither an array nor a type")
    try:
        dtype: np.dtype[Any] = np.dtype(
            value.dtype if arrays.find_key_bits(value) is not None else value
        )
    except TypeError as error:
        raise ArgumentError(f"{reprlib.repr(value)} is neither an array nor a type") from error
    return dtype


def _of_ml_dtypes(value: Any) -> np.dtype[Any] | None:
    """Return a type of ml_dtypes, or that of its scalars; None for any other value."""
    if isinstance(value, np.dtype):
        return value if value.isbuiltin == _USER_DEFINED else None
    is_its = isinstance(value, type) and value.__module__ == ml_dtypes.__name__
    return np.dtype(value) if is_its else None
