"""Inverses of the views of the library ``array``: replay a write to a view onto its base.

``_inverses`` has a function for each operator that gives views: see ``Inverse`` in
``functionalities/functionalize_fallback.py``. PyTorch's are in ``ATen/FunctionalInverses.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.numpy
import numpy as np

from opdispatch.functionalities.functionalize_fallback import (
    Inverse,
    make_identity_kernel,
    make_view_kernel,
)
from opdispatch.library.library import Library
from opdispatch.local_state.lazy_imports import array_operators
from opdispatch.native.array.operators.functional_variants import VIEWS
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.indexing import getitem as getitem_of_arrays
from opdispatch.native.array.operators.library_functions import find_function
from opdispatch.native.array.operators.math_bits import MATH_BIT_VIEWS

Entries = Sequence[int | None]


def _view(name: str, reapply_views: bool) -> Any:
    """Return the view operator ``name``, or ``{name}_copy`` unless ``reapply_views``."""
    return getattr(array_operators(), name if reapply_views else f"{name}_copy").default


def _reshaped(base: Any, mutated: Any, reapply_views: bool, *_: Any, **__: Any) -> Any:
    return _view("reshape", reapply_views)(mutated, list(base.shape))


def _same_again(name: str) -> Inverse:
    """Return the inverse of a view operator that undoes itself when called with its arguments."""

    def inverse(base: Any, mutated: Any, reapply_views: bool, *args: Any, **kwargs: Any) -> Any:
        return _view(name, reapply_views)(mutated, *args, **kwargs)

    return inverse


def _permuted(base: Any, mutated: Any, reapply_views: bool, axes: Sequence[int]) -> Any:
    places = [axis % len(axes) for axis in axes]
    back = [places.index(axis) for axis in range(len(places))]
    return _view("permute_dims", reapply_views)(mutated, back)


def _squeezed(base: Any, mutated: Any, reapply_views: bool, axis: Sequence[int]) -> Any:
    return _view("squeeze", reapply_views)(mutated, axis)


def _expanded(base: Any, mutated: Any, reapply_views: bool, axis: Sequence[int]) -> Any:
    for place in sorted(each % len(base.shape) for each in axis):
        mutated = _view("expand_dims", reapply_views)(mutated, place)
    return mutated


def _moved(base: Any, mutated: Any, reapply_views: bool, source: Any, destination: Any) -> Any:
    return _view("moveaxis", reapply_views)(mutated, destination, source)


def _set(
    base: Any, mutated: Any, reapply_views: bool, start: Entries, stop: Entries, step: Entries
) -> Any:
    return array_operators().setitem.Tensor(base, start, stop, step, [], mutated)


def _set_place(base: Any, mutated: Any, reapply_views: bool, place: int, *, axis: int) -> Any:
    before = axis % len(base.shape)
    whole: list[int | None] = [None] * before
    return array_operators().setitem.Tensor(
        base, [*whole, place], [*whole, None], [*([1] * before), None], [], mutated
    )


def _set_diagonal(base: Any, mutated: Any, reapply_views: bool, *, offset: int) -> Any:
    count, others = mutated.shape[-1], len(base.shape) - 2
    # Compute the places on the host: indices may be host arrays whatever the device of the base.
    rows = np.arange(count) + max(0, -offset)
    columns = np.arange(count) + max(0, offset)
    none: list[int | None] = [None] * len(base.shape)
    step: list[int | None] = [*([1] * others), None, None]
    indices = [*([None] * others), rows, columns]
    return array_operators().setitem.Tensor(base, none, none, step, indices, mutated)


def _set_real(base: Any, mutated: Any, reapply_views: bool) -> Any:
    return (
        array_operators().real_scatter.default(base, mutated) if base.dtype.kind == "c" else mutated
    )


def _set_imag(base: Any, mutated: Any, reapply_views: bool) -> Any:
    return array_operators().imag_scatter.default(base, mutated)


def _unreachable(base: Any, mutated: Any, reapply_views: bool, *_: Any, **__: Any) -> Any:
    raise AssertionError("a tensor with overlapping elements is never written to")


def _toggled(name: str) -> Inverse:
    """Return the inverse of a view operator of one argument that undoes itself."""
    return lambda base, mutated, reapply_views: getattr(array_operators(), name).default(mutated)


_INVERSES: dict[str, Inverse] = {
    **{name: _toggled(name) for name in MATH_BIT_VIEWS},
    "broadcast_to": _unreachable,
    "expand_dims": _squeezed,
    "flip": _same_again("flip"),
    "getitem": _set,
    "imag": _set_imag,
    "linalg_diagonal": _set_diagonal,
    "matrix_transpose": _same_again("matrix_transpose"),
    "moveaxis": _moved,
    "permute_dims": _permuted,
    "real": _set_real,
    "reshape": _reshaped,
    "squeeze": _expanded,
    "unstack": _set_place,
}


def _reshapes_in_place(x: Any, shape: Sequence[int], *, copy: bool | None = None) -> bool:
    """Return whether NumPy would return a view; this depends on the strides of ``x``."""
    if copy is not None:
        return not copy
    strided = x.strided()
    if strided is None:
        return True
    try:
        np.reshape(strided, tuple(shape), copy=False)
    except ValueError:
        return False
    return True


def _keeps_elements(x: Any, dtype: Any, *, copy: bool = True, device: str | None = None) -> bool:
    return not copy and x.dtype == dtype and device in (None, x.device)


_IS_VIEW: dict[str, Callable[..., bool]] = {
    "reshape": _reshapes_in_place,
    "imag": lambda x: x.dtype.kind == "c",
}
# NumPy's views of stand-ins: only shapes and strides are read, never elements.
_STRIDED: dict[str, Callable[..., Any]] = {
    "getitem": getitem_of_arrays,
    "reshape": lambda x, shape, *, copy=None: np.reshape(x, tuple(shape), copy=False),
    **dict.fromkeys(MATH_BIT_VIEWS, lambda array: array),
    "unstack": lambda x, place, *, axis: np.moveaxis(x, axis, 0)[place],
}


def register_functionalization(library: Library) -> None:
    """Register all inverses with the library that defines the operators, in one publication."""
    functions = {function.operator: function for function in FUNCTIONS}
    with library.dispatcher.transaction():
        for name in (*VIEWS, *MATH_BIT_VIEWS):
            strided = _STRIDED.get(name)
            if strided is None:
                strided = _with_tuples(find_function(array_api_compat.numpy, functions[name]))
            kernel = make_view_kernel(_INVERSES[name], is_view=_IS_VIEW.get(name), strided=strided)
            library.impl(name, kernel, "Functionalize")
        library.impl("astype", make_identity_kernel(_keeps_elements), "Functionalize")


def _with_tuples(function: Any) -> Any:
    """Return ``function``, passing lists of extents and axes as tuples, as NumPy requires."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return function(
            x,
            *(tuple(each) if isinstance(each, list) else each for each in args),
            **{n: tuple(v) if isinstance(v, list) else v for n, v in kwargs.items()},
        )

    return call
