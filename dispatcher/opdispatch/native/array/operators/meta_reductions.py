"""Reductions, cumulative functions, sorting and searching: shapes and dtypes of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.meta_dtypes import (
    INDEX,
    ONE_ELEMENT,
    DType,
    find_common_dtype,
    find_dtype,
)
from opdispatch.native.array.operators.meta_shapes import (
    Axes,
    Shape,
    check_axes,
    check_axes_of_any,
    check_axis,
    reduce_shape,
    refusal,
    replace_extent,
    show,
)

_REDUCTIONS = ["all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "std", "sum", "var"]
_WITHOUT_IDENTITY = ("max", "min", "argmax", "argmin")
_WITHOUT_AXIS_OF_SCALARS = ("mean", "std", "var")


def _count_nonzero(x: Any) -> Any:
    return np.count_nonzero(x, axis=0)


def _reduction(name: str, function: Callable[..., Any]) -> Callable[..., MetaArray]:
    check = check_axes if name in _WITHOUT_AXIS_OF_SCALARS else check_axes_of_any

    def kernel(
        x: MetaArray,
        *,
        axis: Axes = None,
        dtype: DType | None = None,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> MetaArray:
        axes = check(name, axis, len(x.shape))
        if name in _WITHOUT_IDENTITY and any(x.shape[each] == 0 for each in axes):
            raise refusal(name, f"cannot reduce zero elements of an array of shape {show(x.shape)}")
        if dtype is None:
            dtype = find_dtype(name, function, ONE_ELEMENT, x.dtype)
        return MetaArray(reduce_shape(x.shape, axes, keepdims), dtype)

    return kernel


def _cumulative(name: str, function: Callable[..., Any]) -> Callable[..., MetaArray]:
    def kernel(
        x: MetaArray,
        *,
        axis: int | None = None,
        dtype: DType | None = None,
        include_initial: bool = False,
    ) -> MetaArray:
        if axis is None and len(x.shape) > 1:
            raise refusal(name, f"needs an axis for the shape {show(x.shape)}")
        shape = x.shape or ONE_ELEMENT
        place = check_axis(name, 0 if axis is None else axis, len(shape))
        if dtype is None:
            dtype = find_dtype(name, function, ONE_ELEMENT, x.dtype)
        return MetaArray(replace_extent(shape, place, shape[place] + include_initial), dtype)

    return kernel


def _sort(
    x: MetaArray, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> MetaArray:
    check_axis("sort", axis, len(x.shape))
    return MetaArray(x.shape, x.dtype)


def _argsort(
    x: MetaArray, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> MetaArray:
    shape: Shape = x.shape if descending else x.shape or ONE_ELEMENT
    check_axis("argsort", axis, len(shape))
    return MetaArray(shape, INDEX)


def _searchsorted(
    x1: MetaArray, x2: Any, *, side: str = "left", sorter: MetaArray | None = None
) -> MetaArray:
    name = "searchsorted"
    if len(x1.shape) != 1:
        raise refusal(
            name, f"searches a sorted array of one dimension, not of the shape {show(x1.shape)}"
        )
    if side not in ("left", "right"):
        raise refusal(name, f"takes side='left' or 'right', not {side!r}")
    if sorter is not None and sorter.shape != x1.shape:
        shapes = show(sorter.shape, x1.shape)
        raise refusal(name, f"was given a sorter and an array of shapes {shapes}, which differ")
    if sorter is not None and sorter.dtype.kind not in "iu":
        raise refusal(name, f"takes a sorter of integers, not of {sorter.dtype}")
    return MetaArray(x2.shape if isinstance(x2, MetaArray) else (), INDEX)


def _isin(x1: Any, x2: Any, *, invert: bool = False) -> MetaArray:
    return MetaArray(x1.shape if isinstance(x1, MetaArray) else (), np.dtype(np.bool))


def _diff(
    x: MetaArray,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: MetaArray | None = None,
    append: MetaArray | None = None,
) -> MetaArray:
    if n == 0:
        return MetaArray(x.shape, x.dtype)
    if n < 0:
        raise refusal("diff", f"cannot be repeated {n} times")
    place = check_axis("diff", axis, len(x.shape))
    extent, dtypes = x.shape[place], [x.dtype]
    for other in (prepend, append):
        if other is None:
            continue
        shape = other.shape or replace_extent(x.shape, place, 1)
        if len(shape) != len(x.shape) or replace_extent(shape, place, 0) != replace_extent(
            x.shape, place, 0
        ):
            shapes = show(x.shape, other.shape)
            raise refusal(
                "diff", f"was given shapes {shapes}, whose extents differ outside axis {axis}"
            )
        extent += shape[place]
        dtypes.append(other.dtype)
    shape = replace_extent(x.shape, place, max(0, extent - n))
    return MetaArray(shape, find_common_dtype("diff", *dtypes))


def _depends_on_elements(name: str) -> Callable[..., NoReturn]:
    def kernel(*arguments: Any, **keywords: Any) -> NoReturn:
        raise refusal(
            name, "has a result whose shape depends on the elements, and a meta tensor has none"
        )

    return kernel


META_REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _reduction(name, getattr(np, name)) for name in _REDUCTIONS},
    "count_nonzero": _reduction("count_nonzero", _count_nonzero),
    "cumulative_prod": _cumulative("cumulative_prod", np.cumprod),
    "cumulative_sum": _cumulative("cumulative_sum", np.cumsum),
    "sort": _sort,
    "argsort": _argsort,
    **dict.fromkeys(("searchsorted", "searchsorted.Scalar"), _searchsorted),
    **dict.fromkeys(("isin", "isin.Scalar", "isin.ScalarFirst"), _isin),
    "diff": _diff,
    "repeat.Tensor": _depends_on_elements("repeat"),
    **{
        name: _depends_on_elements(name)
        for name in ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
    },
}
"""Meta functions along axes; those with data-dependent result shapes raise ArgumentError."""
