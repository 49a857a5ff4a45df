"""Batching rules of operators that reshape, permute, split and join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.errors import TransformError
from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import (
    axes_below,
    axis_below,
    batched,
    check_matrices,
    flattened,
    with_dimension,
    with_ndim,
)
from opdispatch.native.array.batching.reductions import along_axis
from opdispatch.native.array.derivatives.namespace import xp
from opdispatch.native.array.operators.meta_shapes import broadcast, refusal, show


def _broadcast_to(call: BatchedCall) -> tuple[Any, Any]:
    x, shape = call.args[0], call.value("shape")
    if call.ndim(0) > len(shape):
        raise refusal(
            call.name, f"cannot broadcast shape {list(call.shape(0))} to fewer dimensions: {shape}"
        )
    x = with_ndim(x, 0, len(shape))
    return call.run(x=x, shape=[x.shape[0], *shape]), 0


def _shapes(call: BatchedCall) -> list[tuple[int, ...]]:
    """Return the sample shapes of the tensors in a list argument."""
    pairs = zip(call.args[0], call.dims[0], strict=True)
    return [tuple(x.shape) if dim is None else tuple(x.shape[1:]) for x, dim in pairs]


def _broadcast_arrays(call: BatchedCall) -> tuple[Any, Any]:
    shape = broadcast(call.name, *_shapes(call))
    results = []
    for x, dim in zip(call.args[0], call.dims[0], strict=True):
        whole = shape if dim is None else (x.shape[0], *shape)
        results.append(xp.broadcast_to(with_ndim(x, dim, len(shape)), whole))
    return results, list(call.dims[0])


def _all_batched(call: BatchedCall) -> list[Any]:
    pairs = zip(call.args[0], call.dims[0], strict=True)
    return [batched(x, dim, call.batch_size) for x, dim in pairs]


def _concat(call: BatchedCall) -> tuple[Any, Any]:
    arrays, axis = _all_batched(call), call.value("axis")
    if axis is None:
        return call.run([list(map(flattened, arrays)), 1]), 0
    return call.run([arrays, axis_below(call, axis, arrays[0].ndim - 1)]), 0


def _stack(call: BatchedCall) -> tuple[Any, Any]:
    arrays = _all_batched(call)
    return call.run([arrays, axis_below(call, call.value("axis"), arrays[0].ndim)]), 0


def _expand_dims(call: BatchedCall) -> tuple[Any, Any]:
    axes = call.value("axis")
    return call.run(axis=axes_below(call, axes, call.ndim(0) + len(axes))), 0


def _flip(call: BatchedCall) -> tuple[Any, Any]:
    return call.run(axis=axes_below(call, call.value("axis"), call.ndim(0))), 0


def _moveaxis(call: BatchedCall) -> tuple[Any, Any]:
    ndim = call.ndim(0)
    source = axes_below(call, call.value("source"), ndim)
    return call.run(source=source, destination=axes_below(call, call.value("destination"), ndim)), 0


def _permute_dims(call: BatchedCall) -> tuple[Any, Any]:
    axes, ndim = call.value("axes"), call.ndim(0)
    if len(axes) != ndim:
        raise refusal(call.name, f"was given {len(axes)} axes for {ndim} dimensions")
    return call.run(axes=[0, *axes_below(call, axes, ndim)]), 0


def _repeat(call: BatchedCall) -> tuple[Any, Any]:
    if call.dims[1] is not None:
        raise by_elements(call, "the numbers of repetitions")
    x, axis = call.args[0], call.value("axis")
    if axis is None:
        return call.run(x=flattened(x), axis=1), 0
    x, axis = with_dimension(call, axis)
    return call.run(x=x, axis=axis), 0


def by_elements(call: BatchedCall, what: str) -> TransformError:
    """Return the error for a result whose shape depends on ``what``, as for ``nonzero``."""
    return TransformError(
        f"vmap cannot batch {call.op.name}: the shape of the result depends on {what}, which may "
        "differ between samples",
        hint="use array_api.where and reductions, or call it outside of vmap",
        operator=str(call.op.name),
    )


def _reshape(call: BatchedCall) -> tuple[Any, Any]:
    shape = list(call.value("shape"))
    size = math.prod(call.shape(0))
    known = math.prod(extent for extent in shape if extent != -1)
    fits = known == size
    if shape.count(-1) == 1 and known > 0 and size % known == 0:
        shape[shape.index(-1)] = size // known
        fits = True
    if not fits or any(extent < 0 for extent in shape):
        raise refusal(
            call.name, f"cannot make shape {call.value('shape')} from shape {list(call.shape(0))}"
        )
    return call.run(shape=[call.batch_size, *shape]), 0


def _roll(call: BatchedCall) -> tuple[Any, Any]:
    x, axis = call.args[0], call.value("axis")
    if axis is None:
        return xp.reshape(call.run(x=flattened(x), axis=[1]), x.shape), 0
    ndim = call.ndim(0)
    return call.run(axis=[axis_below(call, each, ndim) for each in axis]), 0


def _squeeze(call: BatchedCall) -> tuple[Any, Any]:
    return call.run(axis=axes_below(call, call.value("axis"), call.ndim(0))), 0


def _tile(call: BatchedCall) -> tuple[Any, Any]:
    x, repetitions = call.args[0], call.value("repetitions")
    missing = call.ndim(0) - len(repetitions)
    x = with_ndim(x, 0, len(repetitions))
    return call.run([x, [1, *[1] * max(0, missing), *repetitions]]), 0


def of_matrices(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a function of the matrices in the last two dimensions of a sample."""
    check_matrices(call)
    return call.run(), 0


def meshgrid(arrays: Sequence[Any], *, indexing: str) -> list[Any]:
    """Return coordinate grids, one for each vector, computed by other operators.

    Raises ArgumentError for arrays of more than one dimension, or an ``indexing`` other than 'xy'
    and 'ij'.
    """
    if indexing not in ("xy", "ij"):
        raise refusal("meshgrid", f"takes indexing='xy' or 'ij', not {indexing!r}")
    for each in arrays:
        if each.ndim > 1:
            raise refusal(
                "meshgrid", f"takes arrays of one dimension, not of shape {show(each.shape)}"
            )
    count = len(arrays)
    vectors = [xp.reshape(each, (-1,)) for each in arrays]
    axes = list(range(count))
    if indexing == "xy" and count > 1:
        axes[:2] = [1, 0]
    shape = [0] * count
    for axis, vector in zip(axes, vectors, strict=True):
        shape[axis] = vector.shape[0]
    whole = []
    for axis, vector in zip(axes, vectors, strict=True):
        along = [1] * count
        along[axis] = -1
        whole.append(xp.broadcast_to(xp.reshape(vector, along), shape))
    return whole


def _take(call: BatchedCall) -> tuple[Any, Any]:
    x, indices = call.args[:2]
    of_x, of_indices = call.dims[:2]
    axis, below = call.value("axis"), 1
    if axis is None:
        x = xp.reshape(x, (-1,)) if of_x is None else flattened(x)
    else:
        x, below = with_dimension(call, axis)
    axis = below - 1
    if of_indices is None:
        return call.run(x=x, axis=below), 0
    shape = tuple(indices.shape)
    if of_x is None:
        x = x if x.ndim else xp.reshape(x, (1,))
        found = call.run([x, xp.reshape(indices, (-1,)), axis])
        found = xp.reshape(found, (*x.shape[:axis], *shape, *x.shape[axis + 1 :]))
        return found, axis
    # Index (sample, axis) together, with the axis moved behind the batch.
    moved = xp.moveaxis(x, axis + 1, 1)
    samples = xp.reshape(
        xp.arange(shape[0], device=indices.device), (shape[0], *[1] * (len(shape) - 1))
    )
    found = moved[samples, indices]
    joint = len(shape) - 1
    order = [0, *range(joint + 1, joint + 1 + axis), *range(1, joint + 1)]
    order += range(joint + 1 + axis, found.ndim)
    return xp.permute_dims(found, order), 0


def _take_along_axis(call: BatchedCall) -> tuple[Any, Any]:
    x, indices = call.args[:2]
    args = [
        batched(x, call.dims[0], call.batch_size),
        batched(indices, call.dims[1], call.batch_size),
        axis_below(call, call.value("axis"), call.ndim(0)),
    ]
    return call.run(args), 0


def _by_elements(call: BatchedCall) -> tuple[Any, Any]:
    raise by_elements(call, "its elements")


MANIPULATION: dict[str, Rule] = {
    "broadcast_arrays": _broadcast_arrays,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "expand_dims": _expand_dims,
    "flip": _flip,
    "matrix_transpose": of_matrices,
    "moveaxis": _moveaxis,
    "permute_dims": _permute_dims,
    "repeat": _repeat,
    "repeat.Tensor": _repeat,
    "reshape": _reshape,
    "roll": _roll,
    "squeeze": _squeeze,
    "stack": _stack,
    "take": _take,
    "take_along_axis": _take_along_axis,
    "tile": _tile,
    "tril": of_matrices,
    "triu": of_matrices,
    "unstack": along_axis,
}
BY_ELEMENTS: dict[str, Rule] = dict.fromkeys(
    ("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"), _by_elements
)
"""Operators with data-dependent result shapes, for which ``vmap`` raises."""
