"""The array library's functions behind the operators, adapted to their schemas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from opdispatch.native.array.operators.extension_functions import EXTENSION_ADAPTERS
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.meta_shapes import as_tuple, refusal, show
from opdispatch.native.array.operators.preconditions import with_precondition
from opdispatch.native.array.operators.sizes import (
    check_points,
    check_range,
    check_repeats,
    check_tiles,
)
from opdispatch.native.array.operators.special_cases import expm1, floor_divide
from opdispatch.native.array.operators.type_promotion import is_promoted


def find_function(namespace: Any, function: ArrayFunction) -> Kernel:
    """Return the function of ``namespace`` behind an operator, adapted and checking arguments."""
    return with_precondition(function.operator, find_unchecked(namespace, function))


def find_unchecked(namespace: Any, function: ArrayFunction) -> Kernel:
    """Like ``find_function``, without the checks of preconditions."""
    found: Kernel = functools.reduce(getattr, function.path, namespace)
    adapt = _ADAPTERS.get(function.operator)
    return found if adapt is None else adapt(found)


def _broadcast_arrays(found: Kernel) -> Kernel:
    """Adapt ``broadcast_arrays``: make results read-only, as its schema has no alias annotation."""

    def broadcast_arrays(arrays: Any) -> Any:
        results = list(arrays)
        for each in arrays:
            if type(each) is not np.ndarray or each.shape != arrays[0].shape:
                results = list(found(*arrays))
                break
        for place, each in enumerate(results):
            if isinstance(each, np.ndarray):
                results[place] = each.view()
                results[place].setflags(write=False)
        return results

    return broadcast_arrays


def _broadcast_to(found: Kernel) -> Kernel:
    """Adapt ``broadcast_to``: NumPy's view is read-only.

    Make it writable, as PyTorch's is, if no element is repeated.
    """

    def broadcast_to(x: Any, shape: Any) -> Any:
        result = found(x, shape)
        if isinstance(result, np.ndarray) and result.size == x.size and x.flags.writeable:
            result.flags.writeable = True
        return result

    return broadcast_to


def _clip(found: Kernel) -> Kernel:
    """Adapt ``clip``: that of array-api-compat wraps bounds of other dtypes, and modifies integer
    bounds in place.
    """

    def clip(x: Any, *bounds: Any) -> Any:
        if is_promoted(x.dtype, bounds):
            return np.clip(x, *bounds)
        x = _in_native_order(x)
        return found(x, *(_as_bound(each, x.dtype) for each in bounds))

    return clip


def _clip_to_numbers(found: Kernel) -> Kernel:
    """Adapt ``clip`` with scalar bounds: that of array-api-compat takes ten times as long."""

    def clip(x: Any, low: Any = None, high: Any = None) -> Any:
        is_complex = complex in (type(low), type(high))
        if x.dtype.kind != "f" or is_complex:
            if is_complex or is_promoted(x.dtype, (low, high)):
                return np.clip(x, low, high)
            return found(_in_native_order(x), low, high)
        bounded = x if low is None else np.maximum(x, low)  # NEP 13: calls CuPy's for its arrays
        if high is not None:
            return np.minimum(bounded, high)
        return _in_native_order(x.copy()) if bounded is x else bounded

    return clip


def _in_native_order(x: Any) -> Any:
    """Return ``x`` in native byte order, which ``clip`` of array-api-compat requires."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _as_bound(bound: Any, dtype: Any) -> Any:
    """Return a bound converted to ``dtype``; an integer out of range becomes the nearest in range.

    A read-only bound, such as a kernel's argument in the service, is copied: ``clip`` modifies it.
    """
    if not hasattr(bound, "dtype"):
        return bound
    if bound.dtype == dtype:
        is_kept = not isinstance(bound, np.ndarray) or bound.flags.writeable
        return bound if is_kept else bound.copy()
    bound = _in_native_order(bound)
    namespace = array_namespace(bound)
    if dtype.kind in "iu" and bound.dtype.kind in "iu":
        wanted, given = namespace.iinfo(dtype), namespace.iinfo(bound.dtype)
        bound = namespace.clip(bound, max(wanted.min, given.min), min(wanted.max, given.max))
    return namespace.astype(bound, dtype)


def _flip(found: Kernel) -> Kernel:
    """Adapt ``flip``: NumPy's returns a scalar, not a view, for a 0-d array."""

    def flip(x: Any, *, axis: Any) -> Any:
        result = found(x, axis=axis)
        return result if x.ndim else x[...]

    return flip


def _repeat(found: Kernel) -> Kernel:
    """Adapt ``repeat``: NumPy's does not accept uint64 counts."""

    def repeat(x: Any, repeats: Any, *, axis: int | None) -> Any:
        if isinstance(repeats, np.ndarray):
            check_repeats(x, repeats, axis)
        return found(
            x, repeats.astype("int64") if repeats.dtype.kind == "u" else repeats, axis=axis
        )

    return repeat


def _reshape(found: Kernel) -> Kernel:
    """Adapt ``reshape``: NumPy's treats every negative extent as -1."""

    def reshape(x: Any, shape: int | tuple[int, ...], *, copy: bool | None) -> Any:
        for extent in shape if type(shape) is tuple else as_tuple(shape):
            if extent < -1:
                shapes = show(as_tuple(shape)), show(x.shape)
                raise refusal(
                    "reshape", "cannot make the shape {} from the shape {}".format(*shapes)
                )
        return found(x, shape, copy=copy)

    return reshape


def _of_possible_size(check: Callable[..., None]) -> Callable[[Kernel], Kernel]:
    """Adapt a function to call ``check`` first, as NumPy's sizes wrap around: see ``sizes``."""

    def adapt(found: Kernel) -> Kernel:
        def call(*args: Any, **options: Any) -> Any:
            check(*args, **options)
            return found(*args, **options)

        return call

    return adapt


def _diff(found: Kernel) -> Kernel:
    """Adapt ``diff``: omit None, which NumPy's rejects, and limit ``n`` to the extent."""

    def diff(x: Any, *, n: int = 1, prepend: Any = None, append: Any = None, **options: Any) -> Any:
        ends = {"prepend": prepend, "append": append}
        given = {name: end for name, end in ends.items() if end is not None}
        most = sum(max((1, *each.shape)) for each in (x, *given.values()))
        result = found(x, n=min(n, most), **given, **options)
        return x.copy() if result is x else result

    return diff


def _meshgrid(found: Kernel) -> Kernel:
    """Adapt ``meshgrid``: CuPy's returns a single argument itself."""

    def meshgrid(arrays: Sequence[Any], *, indexing: str) -> list[Any]:
        grids = list(found(*arrays, indexing=indexing))
        return [each.copy() if any(each is one for one in arrays) else each for each in grids]

    return meshgrid


def _where(found: Kernel) -> Kernel:
    """Adapt ``where``: NumPy's wraps a scalar out of range of the array's integer dtype."""

    def where(condition: Any, x1: Any, x2: Any) -> Any:
        array, number = (x1, x2) if hasattr(x1, "dtype") else (x2, x1)
        if array.dtype.kind in "iu" and type(number) is int:
            array.dtype.type(number)  # raises OverflowError
        return found(condition, x1, x2)

    return where


def _isin(found: Kernel) -> Kernel:
    """Adapt ``isin``: NumPy's compares int64 with uint64 as float64; CuPy's rejects scalars."""

    def isin(x1: Any, x2: Any, *, invert: bool = False) -> Any:
        array = x1 if hasattr(x1, "dtype") else x2
        x1, x2 = (x if x is array else _as_element(x, array) for x in (x1, x2))
        return found(x1, x2, invert=invert)

    return isin


def _as_element(number: Any, array: Any) -> Any:
    """Return a scalar as a 0-d array, of the dtype of ``array`` if an integer one that holds it."""
    namespace, dtype = array_namespace(array), None
    if type(number) is int and array.dtype.kind in "iu":
        known = namespace.iinfo(array.dtype)
        dtype = array.dtype if known.min <= number <= known.max else None
    return namespace.asarray(number, dtype=dtype)


def _shifted(found: Kernel) -> Kernel:
    """Adapt ``fftshift`` or ``ifftshift``: NumPy's fails for a 0-d array."""

    def shifted(x: Any, *shift: Any, **options: Any) -> Any:
        is_alone = not x.shape and all(axes in (None, (), []) for axes in options.values())
        is_alone = is_alone and all(len(as_tuple(each)) == 1 for each in shift)
        return x.copy() if is_alone else found(x, *shift, **options)

    return shifted


def _unstack(found: Kernel) -> Kernel:
    """Adapt ``unstack``: NumPy's returns scalars, not views, for a 1-d array."""

    def unstack(x: Any, *, axis: int) -> Any:
        if x.ndim == 1 and axis in (0, -1):
            return [x[place, ...] for place in range(len(x))]
        return list(found(x, axis=axis))

    return unstack


# Adapters where the schema differs from the standard's function, or a library deviates from it.
_ADAPTERS: Final[dict[str, Callable[[Kernel], Kernel]]] = {
    "arange": _of_possible_size(check_range),
    "broadcast_arrays": _broadcast_arrays,
    "broadcast_to": _broadcast_to,
    "clip": _clip_to_numbers,
    **dict.fromkeys(("clip.Tensor", "clip.ScalarMin", "clip.ScalarMax"), _clip),
    "diff": _diff,
    "expm1": expm1,
    "flip": _flip,
    **dict.fromkeys(
        ("floor_divide.Tensor", "floor_divide.Scalar", "floor_divide.ScalarFirst"), floor_divide
    ),
    **dict.fromkeys(("isin.Scalar", "isin.ScalarFirst"), _isin),
    "meshgrid": _meshgrid,
    "linspace": _of_possible_size(check_points),
    **dict.fromkeys(("fft_fftshift", "fft_ifftshift", "roll"), _shifted),
    "nonzero": lambda found: lambda x: list(found(x)),
    "repeat": _of_possible_size(check_repeats),
    "repeat.Tensor": _repeat,
    "reshape": _reshape,
    "tile": _of_possible_size(check_tiles),
    **dict.fromkeys(("where.ScalarSelf", "where.ScalarOther"), _where),
    "unstack": _unstack,
    **EXTENSION_ADAPTERS,
}
