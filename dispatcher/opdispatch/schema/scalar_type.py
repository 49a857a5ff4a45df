"""PyTorch's enum values of dtypes, layouts and memory formats.

The schema language stores and prints a default such as ``ScalarType dtype=float`` as a number (6).
This module maps the numbers to the values that kernels get: NumPy dtypes, including those of
ml_dtypes, and the names of layouts and memory formats.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

CODE_OF_NAME: Final[dict[str, int]] = {
    # Names allowed as defaults of type ScalarType, with their c10::ScalarType codes.
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "short": 2,
    "int32": 3,
    "int": 3,
    "int64": 4,
    "long": 4,
    "float16": 5,
    "half": 5,
    "float32": 6,
    "float": 6,
    "float64": 7,
    "double": 7,
    "complex32": 8,
    "chalf": 8,
    "complex64": 9,
    "cfloat": 9,
    "complex128": 10,
    "cdouble": 10,
    "bool": 11,
    "qint8": 12,
    "quint8": 13,
    "qint32": 14,
    "bfloat16": 15,
    "quint4x2": 16,
    "quint2x4": 17,
    "bits1x8": 18,
    "bits2x4": 19,
    "bits4x2": 20,
    "bits8": 21,
    "bits16": 22,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
    "uint1": 30,
    "bit": 30,
    "uint2": 31,
    "uint3": 32,
    "uint4": 33,
    "uint5": 34,
    "uint6": 35,
    "uint7": 36,
    "int1": 37,
    "int2": 38,
    "int3": 39,
    "int4": 40,
    "int5": 41,
    "int6": 42,
    "int7": 43,
    "float8_e8m0fnu": 44,
    "float4_e2m1fn_x2": 45,
}

LAYOUTS: Final = (
    *("strided", "sparse_coo", "sparse_csr", "_mkldnn"),
    *("sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"),
)
"""Names of the layouts; the index is the code."""

MEMORY_FORMATS: Final = (
    "contiguous_format",
    "preserve_format",
    "channels_last",
    "channels_last_3d",
)
"""Names of the memory formats; the index is the code."""

# Names of NumPy dtypes by ScalarType code. Codes in neither dict (quantized and packed types) have
# no NumPy dtype; such defaults remain numbers.
_NUMPY_NAMES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    9: "complex64",
    10: "complex128",
    11: "bool",
    27: "uint16",
    28: "uint32",
    29: "uint64",
}
_ML_DTYPES_NAMES = {
    8: "complex32",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    30: "uint1",
    31: "uint2",
    33: "uint4",
    37: "int1",
    38: "int2",
    40: "int4",
    44: "float8_e8m0fnu",
}


def find_dtype_of_code(code: int) -> np.dtype[Any] | None:
    """Return the dtype with that c10::ScalarType code; None where NumPy and ml_dtypes have none."""
    if code in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[code])
    return _find_ml_dtype(_ML_DTYPES_NAMES[code]) if code in _ML_DTYPES_NAMES else None


def find_code_of_dtype(dtype: np.dtype[Any]) -> int | None:
    """Return the c10::ScalarType code of a dtype; None where PyTorch has no such type."""
    return _codes_of_dtypes().get(dtype)


def find_dtype_of_name(name: str) -> np.dtype[Any] | None:
    """Return the numeric dtype that NumPy or ml_dtypes has under exactly that name, or None."""
    return _dtypes_of_names().get(name)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether the dtype is a boolean or numeric dtype of NumPy or ml_dtypes."""
    return dtype.kind in "biufc" or find_dtype_of_name(dtype.name) == dtype


@cache
def _codes_of_dtypes() -> dict[np.dtype[Any], int]:
    codes = (*_NUMPY_NAMES, *_ML_DTYPES_NAMES)
    return {dtype: code for code in codes if (dtype := find_dtype_of_code(code)) is not None}


@cache
def _dtypes_of_names() -> dict[str, np.dtype[Any]]:
    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type)]
    extended = [np.dtype(kind) for kind in kinds if issubclass(kind, np.generic)]
    return {dtype.name: dtype for dtype in (*map(np.dtype, _NUMPY_NAMES.values()), *extended)}


@cache
def _find_ml_dtype(name: str) -> np.dtype[Any] | None:
    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else np.dtype(kind)
