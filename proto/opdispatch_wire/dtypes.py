"""The element types that have a name on the wire: NumPy dtype <-> text.

The names are those of NumPy and ml_dtypes. Bytes on the wire are little-endian, so the
dtypes in this table are too. The tables are created on first use: forwarding tensors only needs
``item_size``.
"""

from __future__ import annotations

import functools
import reprlib
from typing import Any

import ml_dtypes
import numpy as np

from opdispatch_wire.errors import WireError

_NUMPY_SIZES = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
    **{f"complex{bits}": bits // 8 for bits in (64, 128)},
}
# ml_dtypes also has types narrower than a byte and complex pairs, which cannot be sent.
_ML_DTYPES_SIZES = {
    "bfloat16": 2,
    **dict.fromkeys(
        (
            "float8_e3m4",
            "float8_e4m3",
            "float8_e4m3b11fnuz",
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
        1,
    ),
}
ITEM_SIZES = _NUMPY_SIZES | _ML_DTYPES_SIZES
"""The size of an element in bytes, by the name of its type."""

WIRE_DTYPES: dict[str, np.dtype[Any]]
"""Every element type by name, in the byte order of the wire."""

NAMES_OF_DTYPES: dict[np.dtype[Any], str]
"""The wire's names by dtype, in either byte order: the other one is converted when sent."""


@functools.cache
def _tables() -> dict[str, Any]:
    dtypes = {name: np.dtype(name).newbyteorder("<") for name in _NUMPY_SIZES}
    dtypes |= {name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES_SIZES}
    # Keyed by the dtype itself, since `dtype.name` takes longer than everything else for a small
    # tensor; equal dtypes have equal hashes.
    names = {each: name for name, d in dtypes.items() for each in (d, d.newbyteorder())}
    return {"WIRE_DTYPES": dtypes, "NAMES_OF_DTYPES": names}


def __getattr__(name: str) -> object:
    if name not in ("WIRE_DTYPES", "NAMES_OF_DTYPES"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_tables())  # later accesses do not come here
    return globals()[name]


ACCEPTED_DTYPES = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, "
    "bfloat16 and float8_*"
)


def dtype_to_name(dtype: np.dtype[Any], *, at: str) -> str:
    """Return the wire's name for ``dtype``, whatever its byte order.

    Raises WireError, which starts with the place ``at``, if there is none.
    """
    name: str | None = _tables()["NAMES_OF_DTYPES"].get(dtype)
    if name is None:
        raise WireError(
            f"{at}: dtype {str(dtype)!r} has no representation on the wire; "
            f"accepted are {ACCEPTED_DTYPES}"
        )
    return name


def dtype_from_name(name: str, *, at: str) -> np.dtype[Any]:
    """Return the dtype of that name, little-endian.

    Raises WireError, which starts with the place ``at``, for an unknown name.
    """
    item_size(name, at=at)
    dtype: np.dtype[Any] = _tables()["WIRE_DTYPES"][name]
    return dtype


def item_size(name: str, *, at: str) -> int:
    """Return the size in bytes of an element of that type.

    Raises WireError, which starts with the place ``at``, for an unknown name.
    """
    size = ITEM_SIZES.get(name)
    if size is None:
        raise WireError(
            f"{at}: unknown dtype {reprlib.repr(name)}; accepted are {ACCEPTED_DTYPES}",
        )
    return size
