"""Which element types the operators take, and which of them have a common one.

NumPy promotes more than the array API standard defines, and CuPy not always as NumPy does. What the
standard leaves undefined is an error here, so that it means the same on every device.

https://data-apis.org/array-api/2025.12/API_specification/type_promotion.html
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from opdispatch.errors import ArgumentError, ScalarRangeError
from opdispatch.local_state.numpy_dtype_promotion import NUMPY_PROMOTION

DOUBTFUL_KINDS = "OSUVMmT"
"""NumPy's kinds of objects, texts, records and times. Those of ml_dtypes, such as bfloat16, are
records to it, but have numbers.
"""

_MOST_BITS_SHOWN = 100
_ACCEPTED = "bool, integers, floating-point and complex numbers"
_KINDS = "biufc"
KINDS_OF_SCALAR = {bool: "b", int: "iufc", float: "fc", complex: "fc"}
"""NumPy's kinds of the arrays that a Python scalar goes with, by its type."""


def check_numbers(name: str, dtype: np.dtype[Any]) -> None:
    """Raise ArgumentError unless an array of that type, of a doubtful kind, has numbers."""
    if dtype.kind == "V" and not issubclass(dtype.type, np.void):
        return
    raise ArgumentError(
        f"array::{name} does not take arrays of {dtype}; it takes {_ACCEPTED}", operator=name
    )


@functools.cache
def kind_of_numbers(dtype: np.dtype[Any]) -> str:
    """Return NumPy's letter for the kind of the numbers, also of those of ml_dtypes."""
    if dtype.kind != "V":
        return dtype.kind
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call] # such as int4
        return "i" if info.min < 0 else "u"
    return "f"


def check_pair(name: str, one: np.dtype[Any], other: np.dtype[Any]) -> None:
    """Raise ArgumentError unless the standard defines what the two are promoted to, or NumPy is
    to decide (``numpy_dtype_promotion``).

    Those of ml_dtypes, such as bfloat16, are none of the standard's, and go by their kind.
    """
    for dtype in (one, other):
        if dtype.kind in DOUBTFUL_KINDS:
            check_numbers(name, dtype)
    if one is other:
        return
    kinds = {kind_of_numbers(one), kind_of_numbers(other)}
    if len(kinds) == 1 or kinds <= {"f", "c"}:
        return
    if kinds == {"i", "u"} and (one if kind_of_numbers(one) == "u" else other).itemsize < 8:
        return
    if NUMPY_PROMOTION.get():
        return
    raise ArgumentError(
        f"array::{name} was given arrays of {one} and {other}, for which the array API standard "
        "has no common type",
        hint="convert one of them with astype, or see numpy_dtype_promotion",
        operator=name,
    )


_RANKS = {bool: 0, int: 1, float: 2, complex: 3, "b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def is_promoted(dtype: np.dtype[Any], others: Sequence[Any]) -> bool:
    """Return whether NumPy must decide the promoted type of an array with arrays or scalars of a
    wider kind.
    """
    if not NUMPY_PROMOTION.get():
        return False
    given = [each for each in others if each is not None]
    kinds = [
        kind_of_numbers(each.dtype) if hasattr(each, "dtype") else type(each) for each in given
    ]
    return any(_RANKS[kind] > _RANKS[kind_of_numbers(dtype)] for kind in kinds)


def check_complex(name: str, given: np.dtype[Any], wanted: np.dtype[Any]) -> None:
    """Raise ArgumentError unless complex numbers can be had in that type, or as bool."""
    if wanted.kind not in "cb":
        raise ArgumentError(
            f"array::{name} does not make {given} into {wanted}, which has no imaginary parts",
            hint="take them apart with real and imag",
            operator=name,
        )


def check_scalar(name: str, dtype: np.dtype[Any], scalar: object) -> bool:
    """Check a scalar.

    Return whether the array is of ml_dtypes, whose promotion with scalars NumPy lacks.

    Raises ArgumentError unless the standard lets a Python scalar go with such an array, or NumPy
    is to decide.
    """
    if dtype.kind in DOUBTFUL_KINDS:
        check_numbers(name, dtype)
        return True
    if dtype.kind in KINDS_OF_SCALAR[type(scalar)] or dtype.kind not in _KINDS:
        return False
    if NUMPY_PROMOTION.get():
        return False
    raise ArgumentError(
        f"array::{name} was given an array of {dtype} and the {type(scalar).__name__} {scalar!r}, "
        "for which the array API standard has no common type",
        hint="convert the array with astype, or see numpy_dtype_promotion",
        operator=name,
    )


def find_out_of_range(
    name: str, numbers: Iterable[Any], dtype: np.dtype[Any]
) -> ScalarRangeError | None:
    """Return the error of the first of ``numbers`` that no element of that type can be.

    It is asked for after a library has raised OverflowError: no call that goes well pays for it.
    """
    lowest: float
    highest: float
    if is_of_ints := dtype.kind in "iu":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind in "fc":
        lowest, highest = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    else:
        return None
    for number in numbers:
        # Any float is an element of an array of floats, if only as an infinity.
        is_tried = isinstance(number, int) or (isinstance(number, float) and is_of_ints)
        if is_tried and not lowest <= number <= highest:
            is_long = isinstance(number, int) and number.bit_length() > _MOST_BITS_SHOWN
            return ScalarRangeError(
                f"array::{name} was given {'a very long int' if is_long else repr(number)}, which "
                f"is out of bounds for {dtype}: its numbers are {lowest} to {highest}",
                operator=name,
            )
    return None
