"""Batching rules of products, and of linear algebra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import aligned, batched, check_matrices, with_ndim
from opdispatch.native.array.batching.manipulation import of_matrices
from opdispatch.native.array.derivatives.namespace import xp
from opdispatch.native.array.operators.meta_shapes import check_axis, refusal


def _matmul(call: BatchedCall) -> tuple[Any, Any]:
    x1, x2 = call.args
    first, second = call.dims
    n1, n2 = call.ndim(0), call.ndim(1)
    if n1 == 0 or n2 == 0:
        raise refusal(call.name, "needs at least one dimension, but was given a 0-d sample")
    if call.shape(0)[-1] != call.shape(1)[-2 if n2 > 1 else -1]:
        raise refusal(
            call.name,
            f"was given shapes {list(call.shape(0))} and {list(call.shape(1))}, which do not fit",
        )
    if n1 == 1 and n2 <= 2 and second is None:  # one matrix shared by all samples
        return call.run(), 0
    if n2 == 1 and n1 == 2 and first is None:
        return call.run([x2, xp.matrix_transpose(x1)]), 0
    if n2 == 2 and second is None:  # one large product instead of a batch of small ones
        rows = xp.reshape(x1, (math.prod(x1.shape[:-1]), x1.shape[-1]))
        return xp.reshape(call.run([rows, x2]), (*x1.shape[:-1], x2.shape[-1])), 0
    if n1 == 1:
        x1 = xp.expand_dims(x1, axis=-2)
    if n2 == 1:
        x2 = xp.expand_dims(x2, axis=-1)
    ndim = max(n1, n2, 2)
    product = call.run([with_ndim(x1, first, ndim), with_ndim(x2, second, ndim)])
    if n1 == 1:
        product = xp.squeeze(product, axis=-2)
    if n2 == 1:
        product = xp.squeeze(product, axis=-1)
    return product, 0


def _along_axis(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a product along one axis of both tensors; the other axes broadcast."""
    axis, ndims = call.value("axis"), (call.ndim(0), call.ndim(1))
    for ndim in ndims:
        check_axis(call.name, axis, ndim)
    if axis < 0 or ndims[0] == ndims[1]:
        axis -= ndims[0] if axis >= 0 else 0
        return call.run(aligned(call, (0, 1)), axis=axis), 0
    # A nonnegative axis is a different dimension of each when their numbers of dimensions differ.
    for place, dim in enumerate(call.dims[:2]):
        call.args[place] = xp.moveaxis(call.args[place], axis + (dim is not None), -1)
    found = call.run(aligned(call, (0, 1)), axis=-1)
    return (xp.moveaxis(found, -1, axis + 1) if call.name == "linalg_cross" else found), 0


def _contracted(call: BatchedCall) -> tuple[list[int], list[int]]:
    """Return the contracted axes of both samples, as nonnegative numbers.

    Raises ArgumentError for axes out of range.
    """
    axes, n1, n2 = call.value("axes"), call.ndim(0), call.ndim(1)
    if isinstance(axes, int):
        if not 0 <= axes <= min(n1, n2):
            raise refusal(call.name, f"was given axes={axes} for {n1} and {n2} dimensions")
        return list(range(n1 - axes, n1)), list(range(axes))
    first, second = axes
    return (
        [check_axis(call.name, axis, n1) for axis in first],
        [check_axis(call.name, axis, n2) for axis in second],
    )


def _tensordot(call: BatchedCall) -> tuple[Any, Any]:
    x1, x2 = call.args[:2]
    in_first, in_second = _contracted(call)
    n1, n2 = call.ndim(0), call.ndim(1)
    free1 = [n for n in range(n1) if n not in in_first]
    free2 = [n for n in range(n2) if n not in in_second]
    if call.dims[1] is None:
        return xp.tensordot(x1, x2, axes=([n + 1 for n in in_first], in_second)), 0
    if call.dims[0] is None:
        return xp.tensordot(x1, x2, axes=(in_first, [n + 1 for n in in_second])), len(free1)
    left = xp.permute_dims(x1, [0, *(n + 1 for n in free1), *(n + 1 for n in in_first)])
    right = xp.permute_dims(x2, [0, *(n + 1 for n in in_second), *(n + 1 for n in free2)])
    size = call.batch_size
    rows, columns = left.shape[1 : 1 + len(free1)], right.shape[1 + len(in_second) :]
    sums = [left.shape[1 + len(free1) :], right.shape[1 : 1 + len(in_second)]]
    if sums[0] != sums[1]:
        raise refusal(
            call.name, f"was given contracted extents {sums[0]} and {sums[1]}, which differ"
        )
    count = math.prod(sums[0])
    product = xp.matmul(
        xp.reshape(left, (size, math.prod(rows), count)),
        xp.reshape(right, (size, count, math.prod(columns))),
    )
    return xp.reshape(product, (size, *rows, *columns)), 0


def _outer(call: BatchedCall) -> tuple[Any, Any]:
    if (call.ndim(0), call.ndim(1)) != (1, 1):
        shapes = f"{list(call.shape(0))} and {list(call.shape(1))}"
        raise refusal(call.name, f"was given samples of shapes {shapes}; expected one dimension")
    rows, columns = call.args
    return xp.expand_dims(rows, axis=-1) * xp.expand_dims(columns, axis=-2), 0


def _solve(call: BatchedCall) -> tuple[Any, Any]:
    x1, x2 = call.args
    check_matrices(call)
    is_vector = call.ndim(1) == 1
    if is_vector:
        x2 = xp.expand_dims(x2, axis=-1)
    ndim = max(call.ndim(0), call.ndim(1) + is_vector)
    x1, x2 = with_ndim(x1, call.dims[0], ndim), with_ndim(x2, call.dims[1], ndim)
    found = call.run([x1, x2])
    return xp.squeeze(found, axis=-1) if is_vector else found, 0


def _with_tolerance(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a function of matrices with a tolerance ``rtol``, a number for each matrix."""
    check_matrices(call)
    place = call.place("rtol")
    args = list(call.args)
    ndim = max(call.ndim(0) - 2, call.ndim(place))
    if call.name == "linalg_pinv" and ndim > call.ndim(0) - 2:
        raise refusal(call.name, f"was given rtol of {ndim} dimensions for fewer matrices")
    args[0] = with_ndim(batched(args[0], call.dims[0], call.batch_size), 0, ndim + 2)
    args[place] = with_ndim(args[place], call.dims[place], ndim)
    return call.run(args), 0


_OF_MATRICES: Sequence[str] = (
    *("linalg_cholesky", "linalg_det", "linalg_diagonal", "linalg_eig", "linalg_eigh"),
    *("linalg_eigvals", "linalg_eigvalsh", "linalg_inv", "linalg_matrix_norm"),
    *("linalg_matrix_norm.ord", "linalg_matrix_power", "linalg_matrix_rank", "linalg_pinv"),
    *("linalg_qr", "linalg_slogdet", "linalg_svd", "linalg_svdvals", "linalg_trace"),
)

PRODUCTS: dict[str, Rule] = {
    "linalg_cross": _along_axis,
    "linalg_matrix_rank.Tensor": _with_tolerance,
    "linalg_outer": _outer,
    "linalg_pinv.Tensor": _with_tolerance,
    "linalg_solve": _solve,
    "matmul": _matmul,
    "tensordot": _tensordot,
    "tensordot.dims": _tensordot,
    "vecdot": _along_axis,
    **dict.fromkeys(_OF_MATRICES, of_matrices),
}
