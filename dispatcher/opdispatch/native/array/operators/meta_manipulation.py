"""Reshaping, permuting, splitting and joining: shapes and dtypes of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.meta_dtypes import find_common_dtype
from opdispatch.native.array.operators.meta_shapes import (
    Axes,
    Shape,
    as_tuple,
    broadcast,
    check_axes,
    check_axes_of_any,
    check_axis,
    reduce_shape,
    refusal,
    remove_axis,
    replace_extent,
    show,
)


def _meshgrid(arrays: Sequence[MetaArray], *, indexing: str = "xy") -> list[MetaArray]:
    if indexing not in ("xy", "ij"):
        raise refusal("meshgrid", f"takes indexing='xy' or 'ij', not {indexing!r}")
    extents = [math.prod(array.shape) for array in arrays]
    if indexing == "xy":
        extents[:2] = reversed(extents[:2])
    return [MetaArray(tuple(extents), array.dtype) for array in arrays]


def _triangle(x: MetaArray, *, k: int = 0) -> MetaArray:
    return MetaArray(x.shape, x.dtype.newbyteorder("="))


def _broadcast_arrays(arrays: Sequence[MetaArray]) -> list[MetaArray]:
    shape = broadcast("broadcast_arrays", *(array.shape for array in arrays))
    return [MetaArray(shape, array.dtype) for array in arrays]


def _broadcast_to(x: MetaArray, shape: int | Sequence[int]) -> MetaArray:
    wanted = as_tuple(shape)
    if broadcast("broadcast_to", x.shape, wanted) != wanted:
        shapes = show(x.shape, wanted)
        raise refusal(
            "broadcast_to",
            f"was given shapes {shapes}, the first of which does not broadcast to the second",
        )
    return MetaArray(wanted, x.dtype)


def _take(x: MetaArray, indices: MetaArray, *, axis: int | None = None) -> MetaArray:
    _check_indices("take", indices)
    shape: Shape = (math.prod(x.shape),) if axis is None else x.shape or (1,)
    place = check_axis("take", 0 if axis is None else axis, len(shape))
    before, after = shape[:place], shape[place + 1 :]
    if shape[place] == 0 and 0 not in (*before, *indices.shape):
        raise refusal("take", f"cannot take elements from an empty axis of shape {show(x.shape)}")
    return MetaArray((*before, *indices.shape, *after), x.dtype)


def _take_along_axis(x: MetaArray, indices: MetaArray, *, axis: int = -1) -> MetaArray:
    name = "take_along_axis"
    if indices.dtype.kind == "b":
        raise refusal(name, "takes integer indices, not bool")
    _check_indices(name, indices)
    if len(x.shape) != len(indices.shape):
        shapes = show(x.shape, indices.shape)
        raise refusal(name, f"was given shapes {shapes}, which differ in dimensions")
    place = check_axis(name, axis, len(x.shape))
    extent = indices.shape[place]
    shape = broadcast(name, replace_extent(x.shape, place, extent), indices.shape)
    if x.shape[place] == 0 and 0 not in shape:
        raise refusal(name, f"cannot take elements from an empty axis of shape {show(x.shape)}")
    return MetaArray(shape, x.dtype)


def _check_indices(name: str, indices: MetaArray) -> None:
    if indices.dtype.kind not in "biu":
        raise refusal(name, f"takes integer indices, not {indices.dtype}")


def _concat(arrays: Sequence[MetaArray], *, axis: int | None = 0) -> MetaArray:
    if not arrays:
        raise refusal("concat", "needs at least one array")
    shapes = [(array.size,) if axis is None else array.shape for array in arrays]
    place = check_axis("concat", 0 if axis is None else axis, len(shapes[0]))
    others = {remove_axis(shape, place) for shape in shapes}
    if len(others) > 1 or len(set(map(len, shapes))) > 1:
        raise refusal(
            "concat", f"was given shapes {show(*shapes)}, whose extents differ outside axis {axis}"
        )
    extent = sum(shape[place] for shape in shapes)
    dtype = find_common_dtype("concat", *(array.dtype for array in arrays))
    return MetaArray(replace_extent(shapes[0], place, extent), dtype)


def _stack(arrays: Sequence[MetaArray], *, axis: int = 0) -> MetaArray:
    if not arrays:
        raise refusal("stack", "needs at least one array")
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1:
        raise refusal("stack", f"was given shapes {show(*shapes)}, which differ")
    place = check_axis("stack", axis, len(shapes[0]) + 1)
    shape = (*shapes[0][:place], len(shapes), *shapes[0][place:])
    return MetaArray(shape, find_common_dtype("stack", *(array.dtype for array in arrays)))


def _unstack(x: MetaArray, *, axis: int = 0) -> list[MetaArray]:
    place = check_axis("unstack", axis, len(x.shape))
    shape = remove_axis(x.shape, place)
    return [MetaArray(shape, x.dtype) for _ in range(x.shape[place])]


def _expand_dims(x: MetaArray, axis: int | Sequence[int] = 0) -> MetaArray:
    axes = as_tuple(axis)
    ndim = len(x.shape) + len(axes)
    places, extents = check_axes("expand_dims", axes, ndim), iter(x.shape)
    return MetaArray(tuple(1 if n in places else next(extents) for n in range(ndim)), x.dtype)


def _squeeze(x: MetaArray, axis: int | Sequence[int]) -> MetaArray:
    axes = check_axes_of_any("squeeze", axis, len(x.shape))
    for each in axes:
        if x.shape[each] != 1:
            raise refusal(
                "squeeze", f"was given axis {each} of the shape {show(x.shape)}, which is not 1"
            )
    return MetaArray(reduce_shape(x.shape, axes, keepdims=False), x.dtype)


def _flip(x: MetaArray, *, axis: Axes = None) -> MetaArray:
    check_axes("flip", axis, len(x.shape))
    return MetaArray(x.shape, x.dtype)


def _roll(x: MetaArray, shift: int | Sequence[int], *, axis: Axes = None) -> MetaArray:
    if axis is not None:
        check_axes("roll", axis, len(x.shape), repeatable=True)
        broadcast("roll", (len(as_tuple(shift)),), (len(as_tuple(axis)),))
    return MetaArray(x.shape, x.dtype)


def _moveaxis(
    x: MetaArray, source: int | Sequence[int], destination: int | Sequence[int]
) -> MetaArray:
    ndim = len(x.shape)
    sources = check_axes("moveaxis", source, ndim)
    destinations = check_axes("moveaxis", destination, ndim)
    if len(sources) != len(destinations):
        raise refusal("moveaxis", f"cannot move {len(sources)} axes to {len(destinations)} places")
    order = [axis for axis in range(ndim) if axis not in sources]
    for place, axis in sorted(zip(destinations, sources, strict=True)):
        order.insert(place, axis)
    return MetaArray(tuple(x.shape[axis] for axis in order), x.dtype)


def _permute_dims(x: MetaArray, axes: Sequence[int]) -> MetaArray:
    order = check_axes("permute_dims", axes, len(x.shape))
    if len(order) != len(x.shape):
        raise refusal("permute_dims", f"was given axes {list(axes)} for the shape {show(x.shape)}")
    return MetaArray(tuple(x.shape[axis] for axis in order), x.dtype)


def _matrix_transpose(x: MetaArray) -> MetaArray:
    if len(x.shape) < 2:
        raise refusal(
            "matrix_transpose", f"needs at least two dimensions, not the shape {show(x.shape)}"
        )
    *batch, rows, columns = x.shape
    return MetaArray((*batch, columns, rows), x.dtype)


def _repeat(x: MetaArray, repeats: int, *, axis: int | None = None) -> MetaArray:
    shape: Shape = (math.prod(x.shape),) if axis is None else x.shape or (1,)
    place = check_axis("repeat", 0 if axis is None else axis, len(shape))
    if repeats < 0:
        raise refusal("repeat", f"cannot repeat elements {repeats} times")
    return MetaArray(replace_extent(shape, place, shape[place] * repeats), x.dtype)


def _tile(x: MetaArray, repetitions: Sequence[int]) -> MetaArray:
    times = as_tuple(repetitions)
    ndim = max(len(times), len(x.shape))
    padded = [(1,) * (ndim - len(each)) + each for each in (times, x.shape)]
    return MetaArray(tuple(math.prod(pair) for pair in zip(*padded, strict=True)), x.dtype)


def _reshape(x: MetaArray, shape: int | Sequence[int], *, copy: bool | None = None) -> MetaArray:
    wanted = as_tuple(shape)
    size, known = math.prod(x.shape), math.prod(extent for extent in wanted if extent >= 0)
    unknown = sum(extent < 0 for extent in wanted)
    fits = size == known if unknown == 0 else unknown == 1 and known > 0 and size % known == 0
    if not fits or min(wanted, default=0) < -1:
        raise refusal(
            "reshape", f"cannot make the shape {show(wanted)} from the shape {show(x.shape)}"
        )
    return MetaArray(tuple(size // known if extent < 0 else extent for extent in wanted), x.dtype)


META_MANIPULATION: dict[str, Callable[..., Any]] = {
    "meshgrid": _meshgrid,
    "tril": _triangle,
    "triu": _triangle,
    "broadcast_arrays": _broadcast_arrays,
    "broadcast_to": _broadcast_to,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "concat": _concat,
    "stack": _stack,
    "unstack": _unstack,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "flip": _flip,
    "roll": _roll,
    "moveaxis": _moveaxis,
    "permute_dims": _permute_dims,
    "matrix_transpose": _matrix_transpose,
    "repeat": _repeat,
    "tile": _tile,
    "reshape": _reshape,
}
"""Meta functions of operators that move elements without computing."""
