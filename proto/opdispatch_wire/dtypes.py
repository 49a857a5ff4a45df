"""The element types that have a name on the wire: NumPy dtype <-> text.

The names are those of NumPy and ml_dtypes. Bytes on the wire are little-endian, so the
dtypes in this table are too.
"""

from __future__ import annotations

import reprlib
from typing import Any

import ml_dtypes
import numpy as np

from opdispatch_wire.errors import WireError

_NUMPY_NAMES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"complex{bits}" for bits in (64, 128)),
)
# ml_dtypes also has types narrower than a byte and complex pairs; the wire has not.
_ML_DTYPES_NAMES = ("bfloat16", *sorted(n for n in dir(ml_dtypes) if n.startswith("float8_")))

WIRE_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name).newbyteorder("<") for name in _NUMPY_NAMES},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in _ML_DTYPES_NAMES},
}
"""Every element type by its name, in the byte order that the wire has."""

# By the dtype itself, since `dtype.name` takes longer than all the rest of a small tensor; equal
# dtypes have equal hashes. The other byte order is sent as the wire's.
NAMES_OF_DTYPES: dict[np.dtype[Any], str] = {
    either: name for name, dtype in WIRE_DTYPES.items() for either in (dtype, dtype.newbyteorder())
}

ACCEPTED_DTYPES = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, complex64, complex128, "
    "bfloat16 and float8_*"
)


def dtype_to_name(dtype: np.dtype[Any], *, at: str) -> str:
    """Return the wire's name of ``dtype``, whatever its byte order.

    Raises WireError, which starts with the place ``at``, if the wire has none.
    """
    name = NAMES_OF_DTYPES.get(dtype)
    if name is None:
        raise WireError(
            f"{at}: dtype {str(dtype)!r} has no representation on the wire; "
            f"accepted are {ACCEPTED_DTYPES}"
        )
    return name


def dtype_from_name(name: str, *, at: str) -> np.dtype[Any]:
    """Return the dtype of that name, little-endian.

    Raises WireError, which starts with the place ``at``, if there is none of that name.
    """
    dtype = WIRE_DTYPES.get(name)
    if dtype is None:
        raise WireError(
            f"{at}: unknown dtype {reprlib.repr(name)}; accepted are {ACCEPTED_DTYPES}",
        )
    return dtype
