"""Products and linear algebra: shapes and dtypes of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat.numpy import linalg as of_numpy

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.meta_dtypes import (
    INDEX,
    ONE_BY_ONE,
    ONE_ELEMENT,
    DType,
    compute_dtypes,
    find_dtype,
    find_dtypes,
)
from opdispatch.native.array.operators.meta_shapes import (
    Axes,
    Shape,
    broadcast,
    check_axes,
    check_axis,
    reduce_shape,
    refusal,
    remove_axis,
    show,
)


def _split(name: str, x: MetaArray) -> tuple[Shape, int, int]:
    if len(x.shape) < 2:
        raise refusal(name, f"needs at least two dimensions, not the shape {show(x.shape)}")
    return x.shape[:-2], x.shape[-2], x.shape[-1]


def _split_square(name: str, x: MetaArray) -> tuple[Shape, int]:
    batch, rows, columns = _split(name, x)
    if rows != columns:
        raise refusal(name, f"needs square matrices, not the shape {show(x.shape)}")
    return batch, rows


def _disagreement(name: str, x1: MetaArray, x2: MetaArray) -> Exception:
    shapes = show(x1.shape, x2.shape)
    return refusal(name, f"was given shapes {shapes}, whose extents do not agree")


def _of_square(
    name: str, function: Callable[..., Any], *results: Callable[[Shape, int], Shape]
) -> Callable[..., Any]:
    """Return the meta function of a function of square matrices.

    ``results`` compute the shape of each result from the batch shape and the matrices' extent.
    """
    full_name = f"linalg_{name}"

    def kernel(x: MetaArray, *, upper: bool = False) -> Any:
        batch, extent = _split_square(full_name, x)
        dtypes = find_dtypes(full_name, function, ONE_BY_ONE, x.dtype)
        arrays = tuple(
            MetaArray(shape(batch, extent), dtype)
            for shape, dtype in zip(results, dtypes, strict=True)
        )
        return arrays if len(arrays) > 1 else arrays[0]

    return kernel


def _number(batch: Shape, extent: int) -> Shape:
    return batch


def _vector(batch: Shape, extent: int) -> Shape:
    return (*batch, extent)


def _matrix(batch: Shape, extent: int) -> Shape:
    return (*batch, extent, extent)


def _matmul(x1: MetaArray, x2: MetaArray) -> MetaArray:
    if not x1.shape or not x2.shape:
        raise refusal(
            "matmul", f"needs shapes of one dimension or more, not {show(x1.shape, x2.shape)}"
        )
    *batch1, rows, inner1 = (1, *x1.shape) if len(x1.shape) == 1 else x1.shape
    *batch2, inner2, columns = (*x2.shape, 1) if len(x2.shape) == 1 else x2.shape
    if inner1 != inner2:
        raise _disagreement("matmul", x1, x2)
    shape = broadcast("matmul", tuple(batch1), tuple(batch2))
    if len(x1.shape) > 1:
        shape = (*shape, rows)
    if len(x2.shape) > 1:
        shape = (*shape, columns)
    return MetaArray(shape, find_dtype("matmul", np.matmul, ONE_BY_ONE, x1.dtype, x2.dtype))


def _tensordot(
    x1: MetaArray, x2: MetaArray, *, axes: int | Sequence[Sequence[int]] = 2
) -> MetaArray:
    name, ndim = "tensordot", len(x1.shape)
    if isinstance(axes, int):
        axes = (range(ndim - axes, ndim), range(axes))
    of_first = check_axes(name, axes[0], ndim)
    of_second = check_axes(name, axes[1], len(x2.shape))
    kept = [
        reduce_shape(array.shape, summed, keepdims=False)
        for array, summed in ((x1, of_first), (x2, of_second))
    ]
    return MetaArray(kept[0] + kept[1], find_dtype(name, np.dot, ONE_BY_ONE, x1.dtype, x2.dtype))


def _vecdot(x1: MetaArray, x2: MetaArray, *, axis: int = -1) -> MetaArray:
    places = [check_axis("vecdot", axis, len(each.shape)) for each in (x1, x2)]
    if x1.shape[places[0]] != x2.shape[places[1]]:
        raise _disagreement("vecdot", x1, x2)
    kept = [remove_axis(each.shape, place) for each, place in zip((x1, x2), places, strict=True)]
    dtype = find_dtype("vecdot", np.vecdot, ONE_ELEMENT, x1.dtype, x2.dtype)
    return MetaArray(broadcast("vecdot", *kept), dtype)


def _cross(x1: MetaArray, x2: MetaArray, *, axis: int = -1) -> MetaArray:
    name = "linalg_cross"
    places = [check_axis(name, axis, len(each.shape)) for each in (x1, x2)]
    kept = [remove_axis(each.shape, place) for each, place in zip((x1, x2), places, strict=True)]
    shape = broadcast(name, *kept)
    place = check_axis(name, axis, len(shape) + 1)
    dtype = find_dtype(name, np.cross, (3,), x1.dtype, x2.dtype)
    return MetaArray((*shape[:place], 3, *shape[place:]), dtype)


def _outer(x1: MetaArray, x2: MetaArray) -> MetaArray:
    dtype = find_dtype("linalg_outer", np.outer, ONE_ELEMENT, x1.dtype, x2.dtype)
    return MetaArray((math.prod(x1.shape), math.prod(x2.shape)), dtype)


def _solve(x1: MetaArray, x2: MetaArray) -> MetaArray:
    name = "linalg_solve"
    batch, extent = _split_square(name, x1)
    dtype = find_dtype(name, np.linalg.solve, ONE_BY_ONE, x1.dtype, x2.dtype)
    if not x2.shape or x2.shape[-1 if len(x2.shape) == 1 else -2] != extent:
        raise _disagreement(name, x1, x2)
    if len(x2.shape) == 1:
        return MetaArray((*batch, extent), dtype)
    return MetaArray((*broadcast(name, batch, x2.shape[:-2]), extent, x2.shape[-1]), dtype)


def _diagonal_extent(rows: int, columns: int, offset: int) -> int:
    return max(0, min(rows + min(0, offset), columns - max(0, offset)))


def _diagonal(x: MetaArray, *, offset: int = 0) -> MetaArray:
    batch, rows, columns = _split("linalg_diagonal", x)
    return MetaArray((*batch, _diagonal_extent(rows, columns, offset)), x.dtype)


def _trace(x: MetaArray, *, offset: int = 0, dtype: DType | None = None) -> MetaArray:
    batch, _, _ = _split("linalg_trace", x)
    if dtype is None:
        dtype = find_dtype("linalg_trace", np.trace, ONE_BY_ONE, x.dtype)
    return MetaArray(batch, dtype)


def _matrix_power(x: MetaArray, n: int) -> MetaArray:
    name = "linalg_matrix_power"
    _split_square(name, x)
    # The dtype of any power above 2 is that of the square, of any negative one that of the inverse.
    power = max(-1, min(n, 2))
    sample = np.ones(ONE_BY_ONE, x.dtype)
    return MetaArray(x.shape, compute_dtypes(name, np.linalg.matrix_power, sample, power)[0])


def _matrix_norm(x: MetaArray, *, keepdims: bool = False, ord: Any = "fro") -> MetaArray:
    name = "linalg_matrix_norm"
    _, rows, columns = _split(name, x)
    count = _at_most_one(math.prod(x.shape[:-2]))
    sample = np.ones((count, _at_most_one(rows), _at_most_one(columns)), x.dtype)
    (dtype,) = compute_dtypes(
        name, lambda some, kind: np.linalg.norm(some, ord=kind, axis=(-2, -1)), sample, ord
    )
    ndim = len(x.shape)
    return MetaArray(reduce_shape(x.shape, (ndim - 2, ndim - 1), keepdims), dtype)


def _vector_norm(
    x: MetaArray, *, axis: Axes = None, keepdims: bool = False, ord: Any = 2
) -> MetaArray:
    name = "linalg_vector_norm"
    axes = check_axes(name, axis, len(x.shape))
    sample = np.ones(_at_most_one(math.prod(x.shape[each] for each in axes)), x.dtype)
    (dtype,) = compute_dtypes(
        name, lambda one, kind: np.linalg.vector_norm(one, ord=kind), sample, ord
    )
    return MetaArray(reduce_shape(x.shape, axes, keepdims), dtype)


def _at_most_one(extent: int) -> int:
    return min(extent, 1)


def _matrix_rank(x: MetaArray, *, rtol: Any = None) -> MetaArray:
    name = "linalg_matrix_rank"
    batch, _, _ = _split(name, x)
    find_dtype(name, np.linalg.svdvals, ONE_BY_ONE, x.dtype)
    return MetaArray(broadcast(name, batch, getattr(rtol, "shape", ())), INDEX)


def _pinv(x: MetaArray, *, rtol: Any = None) -> MetaArray:
    name = "linalg_pinv"
    batch, rows, columns = _split(name, x)
    if rtol is None and x.dtype.kind in "biu":
        raise refusal(name, f"needs rtol for an array of {x.dtype}")
    dtype = x.dtype
    if rows and columns:
        if broadcast(name, batch, getattr(rtol, "shape", ())) != batch:
            shapes = show(rtol.shape, x.shape)
            raise refusal(name, f"was given rtol and matrices of shapes {shapes}")
        dtype = find_dtype(name, np.linalg.pinv, ONE_BY_ONE, x.dtype)
    return MetaArray((*batch, columns, rows), dtype)


def _qr(x: MetaArray, *, mode: str = "reduced") -> tuple[MetaArray, MetaArray]:
    batch, rows, columns = _split("linalg_qr", x)
    of_q, of_r = find_dtypes("linalg_qr", np.linalg.qr, ONE_BY_ONE, x.dtype)
    inner = rows if mode == "complete" else min(rows, columns)
    return MetaArray((*batch, rows, inner), of_q), MetaArray((*batch, inner, columns), of_r)


def _svd(x: MetaArray, *, full_matrices: bool = True) -> tuple[MetaArray, MetaArray, MetaArray]:
    batch, rows, columns = _split("linalg_svd", x)
    of_u, of_s, of_vh = find_dtypes("linalg_svd", np.linalg.svd, ONE_BY_ONE, x.dtype)
    inner = min(rows, columns)
    return (
        MetaArray((*batch, rows, rows if full_matrices else inner), of_u),
        MetaArray((*batch, inner), of_s),
        MetaArray((*batch, columns if full_matrices else inner, columns), of_vh),
    )


def _svdvals(x: MetaArray) -> MetaArray:
    batch, rows, columns = _split("linalg_svdvals", x)
    dtype = find_dtype("linalg_svdvals", np.linalg.svdvals, ONE_BY_ONE, x.dtype)
    return MetaArray((*batch, min(rows, columns)), dtype)


META_LINALG: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "tensordot": _tensordot,
    "tensordot.dims": _tensordot,
    "vecdot": _vecdot,
    "linalg_cholesky": _of_square("cholesky", np.linalg.cholesky, _matrix),
    "linalg_cross": _cross,
    "linalg_det": _of_square("det", np.linalg.det, _number),
    "linalg_diagonal": _diagonal,
    "linalg_eig": _of_square("eig", of_numpy.eig, _vector, _matrix),
    "linalg_eigh": _of_square("eigh", np.linalg.eigh, _vector, _matrix),
    "linalg_eigvals": _of_square("eigvals", of_numpy.eigvals, _vector),
    "linalg_eigvalsh": _of_square("eigvalsh", np.linalg.eigvalsh, _vector),
    "linalg_inv": _of_square("inv", np.linalg.inv, _matrix),
    "linalg_matrix_norm": _matrix_norm,
    "linalg_matrix_norm.ord": _matrix_norm,
    "linalg_matrix_power": _matrix_power,
    "linalg_matrix_rank": _matrix_rank,
    "linalg_matrix_rank.Tensor": _matrix_rank,
    "linalg_outer": _outer,
    "linalg_pinv": _pinv,
    "linalg_pinv.Tensor": _pinv,
    "linalg_qr": _qr,
    "linalg_slogdet": _of_square("slogdet", np.linalg.slogdet, _number, _number),
    "linalg_solve": _solve,
    "linalg_svd": _svd,
    "linalg_svdvals": _svdvals,
    "linalg_trace": _trace,
    "linalg_vector_norm": _vector_norm,
}
"""Meta functions of products and linear algebra."""
