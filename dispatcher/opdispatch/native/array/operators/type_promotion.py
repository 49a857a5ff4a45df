"""Check that the array API standard defines the promoted dtype of an operator's arguments.

NumPy promotes more than the standard defines, and CuPy not always as NumPy does. Promotions that
the standard leaves undefined raise ArgumentError, so that programs behave alike on every device.

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
"""NumPy's kinds of objects, strings, records and times. The dtypes of ml_dtypes, such as bfloat16,
are of the kind of records as well, but numeric.
"""

_MOST_BITS_SHOWN = 100
_ACCEPTED = "bool, integers, floating-point and complex numbers"
_KINDS = "biufc"
KINDS_OF_SCALAR = {bool: "b", int: "iufc", float: "fc", complex: "fc"}
"""The kinds of arrays with which a Python scalar is promoted, by the scalar's type."""


def check_numbers(name: str, dtype: np.dtype[Any]) -> None:
    """Raise ArgumentError unless ``dtype``, of a doubtful kind, is a numeric one of ml_dtypes."""
    if dtype.kind == "V" and not issubclass(dtype.type, np.void):
        return
    raise ArgumentError(
        f"array::{name} does not take arrays of {dtype}; it takes {_ACCEPTED}", operator=name
    )


@functools.cache
def kind_of_numbers(dtype: np.dtype[Any]) -> str:
    """Return NumPy's one-letter kind of a dtype; ``"f"``, ``"i"`` or ``"u"`` for ml_dtypes."""
    if dtype.kind != "V":
        return dtype.kind
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call] # such as int4
        return "i" if info.min < 0 else "u"
    return "f"


def check_pair(name: str, one: np.dtype[Any], other: np.dtype[Any]) -> None:
    """Raise ArgumentError unless the standard promotes the two dtypes.

    ``numpy_dtype_promotion`` lifts this. The dtypes of ml_dtypes, such as bfloat16, are not in the
    standard: they are checked by their kind.
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
    """Return whether any of ``others``, arrays or scalars, is of a wider kind than ``dtype``.

    NumPy then computes the promoted dtype.
    """
    if not NUMPY_PROMOTION.get():
        return False
    given = [each for each in others if each is not None]
    kinds = [
        kind_of_numbers(each.dtype) if hasattr(each, "dtype") else type(each) for each in given
    ]
    return any(_RANKS[kind] > _RANKS[kind_of_numbers(dtype)] for kind in kinds)


def check_complex(name: str, given: np.dtype[Any], wanted: np.dtype[Any]) -> None:
    """Raise ArgumentError unless ``wanted`` is complex or bool, for a complex ``given``."""
    if wanted.kind not in "cb":
        raise ArgumentError(
            f"array::{name} does not make {given} into {wanted}, which has no imaginary parts",
            hint="take them apart with real and imag",
            operator=name,
        )


def check_scalar(name: str, dtype: np.dtype[Any], scalar: object) -> bool:
    """Return whether ``dtype`` is one of ml_dtypes, which NumPy does not promote with scalars.

    Raises ArgumentError unless the standard promotes an array of ``dtype`` with the scalar;
    ``numpy_dtype_promotion`` lifts this.
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
    """Return the error for the first of ``numbers`` out of range of ``dtype``, or None.

    Call it only after a library has raised OverflowError, so that successful calls do not pay.
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
        # Any float is in range of a floating dtype, if only as an infinity.
        is_tried = isinstance(number, int) or (isinstance(number, float) and is_of_ints)
        if is_tried and not lowest <= number <= highest:
            is_long = isinstance(number, int) and number.bit_length() > _MOST_BITS_SHOWN
            return ScalarRangeError(
                f"array::{name} was given {'a very long int' if is_long else repr(number)}, which "
                f"is out of bounds for {dtype}: its numbers are {lowest} to {highest}",
                operator=name,
            )
    return None
