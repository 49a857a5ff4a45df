"""The Python array API standard, revision 2025.12, over dispatched operators.

    from opdispatch import array_api as xp

    x = xp.linspace(0, 1, 5)
    xp.linalg.vector_norm(xp.sin(x) + 1)

Its array type is ``opdispatch.Tensor``. Each function calls an operator of the library ``array``,
dispatched on the keys of its arguments, and also accepts plain arrays. Functions that do not return
arrays, such as ``isdtype``, use NumPy directly.

https://data-apis.org/array-api/2025.12

operators    the operators that the functions call
functions    functions generated from the operators' schemas
subscript    ``x[index]`` of tensors
creation     conversion of other objects to arrays
data_types   dtypes and functions on them
info         capabilities of the namespace
linalg, fft  the extensions
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from opdispatch.array_api import fft, linalg
from opdispatch.array_api.creation import asarray, from_dlpack
from opdispatch.array_api.data_types import (
    DTYPES,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from opdispatch.array_api.functions import make_functions
from opdispatch.array_api.info import __array_namespace_info__
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.meta_shapes import refusal, show
from opdispatch.native.array.operators.sizes import is_of_no_array

__array_api_version__ = "2025.12"

e = 2.718281828459045
inf = float("inf")
nan = float("nan")
newaxis = None
pi = 3.141592653589793

_made = make_functions(
    [function.schema for function in FUNCTIONS if len(function.path) == 1], __name__
)


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Broadcast arrays to a common shape: ``broadcast_arrays`` of the array API standard.

    The results are views: writing to one writes to the argument. The operator of the same name
    is not used, since its schema declares new results.
    """
    shapes: list[Any] = [getattr(each, "shape", None) for each in arrays]
    if None in shapes or None in itertools.chain.from_iterable(shapes):
        return tuple(_made["broadcast_arrays"](list(arrays)))  # raises the error
    shape = broadcast_shapes(*shapes)
    return tuple(_made["broadcast_to"](each, shape) for each in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to: ``broadcast_shapes`` of the array API standard.

    Raises ValueError, naming two of the shapes, if they cannot be broadcast, and ArgumentError for
    an invalid shape.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except (ValueError, OverflowError, RuntimeError) as error:
        if is_of_no_array(error, shapes):
            raise refusal("broadcast_to", f"of {show(*shapes)}: {error}") from None
        raise


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Return coordinate arrays from coordinate vectors: ``meshgrid`` of the array API standard."""
    return tuple(_made["meshgrid"](list(arrays), indexing=indexing)) if arrays else ()


globals().update({name: made for name, made in _made.items() if name not in globals()})
globals().update(DTYPES)

__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "asarray",
    "broadcast_arrays",
    "broadcast_shapes",
    "can_cast",
    "e",
    "fft",
    "finfo",
    "from_dlpack",
    "iinfo",
    "inf",
    "isdtype",
    "linalg",
    "meshgrid",
    "nan",
    "newaxis",
    "pi",
    "result_type",
]
__all__ += sorted({*_made, *DTYPES} - {*__all__})


def __dir__() -> list[str]:
    return __all__
