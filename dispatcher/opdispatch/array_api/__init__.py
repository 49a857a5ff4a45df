"""The Python array API standard, revision 2025.12, over dispatched operators.

    from opdispatch import array_api as xp

    x = xp.linspace(0, 1, 5)
    xp.linalg.vector_norm(xp.sin(x) + 1)

Its arrays are ``opdispatch.Tensor``; every function calls an operator of the library ``array``, by
the keys of its arguments, and takes plain arrays, too. What has no arrays as results, such as
``isdtype``, asks NumPy.

https://data-apis.org/array-api/2025.12

operators    the operators that it calls
functions    what is made from them
subscript    ``x[index]`` of tensors
creation     arrays out of other objects
data_types   the element types, and what is asked of them
info         what the namespace has
linalg, fft  its extensions
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
    """Broadcast arrays to one shape, as views: ``broadcast_arrays`` of the array API standard.

    The operator of that name says that its results are new, and they share memory; who writes to
    one of these writes to the array.
    """
    shapes: list[Any] = [getattr(each, "shape", None) for each in arrays]
    if None in shapes or None in itertools.chain.from_iterable(shapes):
        return tuple(_made["broadcast_arrays"](list(arrays)))  # which refuses them
    shape = broadcast_shapes(*shapes)
    return tuple(_made["broadcast_to"](each, shape) for each in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that these shapes broadcast to.

    ``broadcast_shapes`` of the array API standard.

    Raises ValueError, with two of the shapes, if they cannot be broadcast, and ArgumentError for
    one that no array can have.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except (ValueError, OverflowError, RuntimeError) as error:
        if is_of_no_array(error, shapes):
            raise refusal("broadcast_to", f"of {show(*shapes)}: {error}") from None
        raise


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Return coordinate arrays of coordinate vectors: ``meshgrid`` of the array API standard."""
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
