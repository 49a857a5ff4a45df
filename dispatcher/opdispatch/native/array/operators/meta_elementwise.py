"""Elementwise and creation functions: shapes and dtypes of results."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.functions import BINARY, UNARY
from opdispatch.native.array.operators.meta_dtypes import (
    NO_ELEMENT,
    DType,
    compute_dtypes,
    find_dtype,
)
from opdispatch.native.array.operators.meta_shapes import as_tuple, broadcast, refusal
from opdispatch.native.array.operators.type_promotion import is_promoted

Number = bool | int | float | complex


def _unary(name: str) -> Callable[..., MetaArray]:
    function = getattr(np, name)

    def kernel(x: MetaArray) -> MetaArray:
        return MetaArray(x.shape, find_dtype(name, function, NO_ELEMENT, x.dtype))

    return kernel


def _binary(name: str) -> Callable[..., MetaArray]:
    function = getattr(np, name)

    def kernel(x1: MetaArray, x2: MetaArray) -> MetaArray:
        dtype = find_dtype(name, function, NO_ELEMENT, x1.dtype, x2.dtype)
        return MetaArray(broadcast(name, x1.shape, x2.shape), dtype)

    return kernel


def _scalar_second(name: str) -> Callable[..., MetaArray]:
    function = getattr(np, name)

    def kernel(x1: MetaArray, x2: Number) -> MetaArray:
        sample = np.empty(NO_ELEMENT, x1.dtype)
        return MetaArray(x1.shape, compute_dtypes(name, function, sample, x2)[0])

    return kernel


def _scalar_first(name: str) -> Callable[..., MetaArray]:
    function = getattr(np, name)

    def kernel(x1: Number, x2: MetaArray) -> MetaArray:
        sample = np.empty(NO_ELEMENT, x2.dtype)
        return MetaArray(x2.shape, compute_dtypes(name, function, x1, sample)[0])

    return kernel


def _where(condition: MetaArray, x1: MetaArray, x2: MetaArray) -> MetaArray:
    dtype = find_dtype("where", np.where, NO_ELEMENT, condition.dtype, x1.dtype, x2.dtype)
    return MetaArray(broadcast("where", condition.shape, x1.shape, x2.shape), dtype)


def _where_scalar(condition: MetaArray, x1: Any, x2: Any) -> MetaArray:
    samples = [
        each if isinstance(each, Number) else np.empty(NO_ELEMENT, each.dtype)
        for each in (condition, x1, x2)
    ]
    shapes = [each.shape for each in (condition, x1, x2) if not isinstance(each, Number)]
    array, number = (x2, x1) if isinstance(x1, Number) else (x1, x2)
    if array.dtype.kind in "iu" and type(number) is int:
        compute_dtypes("where", array.dtype.type, number)
    return MetaArray(broadcast("where", *shapes), compute_dtypes("where", np.where, *samples)[0])


def _clip(x: MetaArray, min: Any = None, max: Any = None) -> MetaArray:
    if x.dtype.kind in "iu":
        known = np.iinfo(x.dtype)
        if type(min) is int and min > known.min:
            np.asarray(min, x.dtype)  # raises OverflowError
        if type(max) is int and max < known.max:
            np.asarray(max, x.dtype)
    bounds = [each.shape for each in (min, max) if each is not None and hasattr(each, "shape")]
    dtype = x.dtype.newbyteorder("=")
    if is_promoted(dtype, (min, max)):
        samples = [
            np.empty(0, each.dtype) if hasattr(each, "dtype") else each for each in (min, max)
        ]
        (dtype,) = compute_dtypes("clip", np.clip, np.empty(0, dtype), *samples)
    return MetaArray(broadcast("clip", x.shape, *bounds), dtype)


def _astype(x: MetaArray, dtype: DType, *, copy: bool = True, device: Any = None) -> MetaArray:
    return MetaArray(x.shape, dtype)


def _new(
    shape: int | Sequence[int], *, dtype: DType | None = None, device: Any = None
) -> MetaArray:
    return MetaArray(as_tuple(shape), np.float64 if dtype is None else dtype)


def _full(
    shape: int | Sequence[int],
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> MetaArray:
    return MetaArray(as_tuple(shape), _dtype_of_filled("full", fill_value, dtype))


def _new_like(x: MetaArray, *, dtype: DType | None = None, device: Any = None) -> MetaArray:
    return MetaArray(x.shape, x.dtype if dtype is None else dtype)


def _full_like(
    x: MetaArray, fill_value: Number, *, dtype: DType | None = None, device: Any = None
) -> MetaArray:
    wanted = x.dtype if dtype is None else dtype
    return MetaArray(x.shape, _dtype_of_filled("full_like", fill_value, wanted))


def _dtype_of_filled(name: str, fill_value: Number, dtype: DType | None) -> DType:
    (found,) = compute_dtypes(name, lambda value: np.full((), value, dtype), fill_value)
    if found.kind == "O":
        raise refusal(name, f"was given {fill_value!r}, which no integer type can hold")
    return found


def _arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> MetaArray:
    first, last = (0, start) if stop is None else (start, stop)
    listed = f"from {first!r} to {last!r} by {step!r}"
    try:
        extent = max(0, math.ceil((last - first) / step))
    except (ZeroDivisionError, OverflowError, ValueError) as error:
        raise refusal("arange", f"cannot go {listed}") from error
    found = np.result_type(np.int64, *(np.asarray(each).dtype for each in (first, last, step)))
    wanted = found if dtype is None else np.dtype(dtype)
    if extent > sys.maxsize or found.kind == "O" or (wanted.kind == "b" and extent > 2):
        raise refusal("arange", f"cannot go {listed} in an array of {wanted}")
    elements = (first, first + step)[:extent]
    compute_dtypes("arange", lambda *values: np.array(values, wanted), *elements)
    return MetaArray((extent,), wanted)


def _eye(
    n_rows: int,
    n_cols: int | None = None,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: Any = None,
) -> MetaArray:
    return _new((n_rows, n_rows if n_cols is None else n_cols), dtype=dtype)


def _linspace(
    start: Number,
    stop: Number,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> MetaArray:
    (found,) = compute_dtypes(
        "linspace", lambda one, two: np.linspace(one, two, 0, dtype=dtype), start, stop
    )
    return MetaArray((num,), found)


META_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: _unary(name) for name in UNARY},
    **{f"{name}.Tensor": _binary(name) for name in BINARY},
    **{f"{name}.Scalar": _scalar_second(name) for name in BINARY},
    **{f"{name}.ScalarFirst": _scalar_first(name) for name in BINARY},
    "where": _where,
    "where.ScalarSelf": _where_scalar,
    "where.ScalarOther": _where_scalar,
    "clip": _clip,
    "clip.Tensor": _clip,
    "clip.ScalarMin": _clip,
    "clip.ScalarMax": _clip,
    "astype": _astype,
    "arange": _arange,
    "empty": _new,
    "eye": _eye,
    "full": _full,
    "linspace": _linspace,
    "ones": _new,
    "zeros": _new,
    "empty_like": _new_like,
    "full_like": _full_like,
    "ones_like": _new_like,
    "zeros_like": _new_like,
}
"""Meta functions of elementwise and creation operators."""
