"""Batching rules of reductions, cumulative functions, sorting and searching."""

from __future__ import annotations

from typing import Any

from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import (
    axes_below,
    axis_below,
    batched,
    flattened,
    with_dimension,
    with_ndim,
)
from opdispatch.native.array.derivatives.namespace import xp
from opdispatch.native.array.operators.meta_shapes import refusal
from opdispatch.tensors.tensor import Tensor


def _reduction(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a reduction over some axes, or over all of a sample's."""
    ndim = call.ndim(0)
    if ndim == 0:
        axes_below(call, call.value("axis"), 0)  # raises for any axis of a 0-d sample
        return call.run(x=xp.expand_dims(call.args[0], axis=1), axis=[1], keepdims=False), 0
    return call.run(axis=axes_below(call, call.value("axis"), ndim)), 0


def _place_of_extremum(call: BatchedCall) -> tuple[Any, Any]:
    """Batch ``argmax`` or ``argmin``, along one axis or over all elements of a sample."""
    x, axis, ndim = call.args[0], call.value("axis"), call.ndim(0)
    if axis is not None and ndim > 0:
        return call.run(axis=axis_below(call, axis, ndim)), 0
    if axis not in (None, 0, -1):
        axis_below(call, axis, ndim)  # raises
    found = call.run(x=flattened(x), axis=1, keepdims=False)
    if call.value("keepdims"):
        found = xp.reshape(found, (x.shape[0], *[1] * ndim))
    return found, 0


def _cumulative(call: BatchedCall) -> tuple[Any, Any]:
    x, axis, ndim = call.args[0], call.value("axis"), call.ndim(0)
    if axis is None:
        if ndim > 1:
            raise refusal(call.name, f"needs an axis for {ndim} dimensions")
        return call.run(x=flattened(x), axis=1), 0
    x, axis = with_dimension(call, axis)
    return call.run(x=x, axis=axis), 0


def along_axis(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a function along one given axis."""
    return call.run(axis=axis_below(call, call.value("axis"), call.ndim(0))), 0


def _order(call: BatchedCall) -> tuple[Any, Any]:
    x, axis = with_dimension(call, call.value("axis"))
    return call.run(x=x, axis=axis), 0


def _diff(call: BatchedCall) -> tuple[Any, Any]:
    ndim = call.ndim(0)
    if call.value("n") == 0:
        return call.args[0], call.dims[0]
    axis = axis_below(call, call.value("axis"), ndim)
    args = list(call.args)
    args[0] = batched(args[0], call.dims[0], call.batch_size)
    for place in (call.place("prepend"), call.place("append")):
        if args[place] is not None:
            each = batched(args[place], call.dims[place], call.batch_size)
            if call.ndim(place) == 0:  # a 0-d sample is one element of each vector
                shape = [1 if n == axis else extent for n, extent in enumerate(args[0].shape)]
                each = xp.broadcast_to(with_ndim(each, 0, ndim), shape)
            args[place] = each
    return call.run(args, axis=axis), 0


def _searchsorted(call: BatchedCall) -> tuple[Any, Any]:
    """Batch ``searchsorted``: in one call for a shared sorted array, else sample by sample."""
    sorter = call.place("sorter")
    if call.dims[0] is None and call.dims[sorter] is None:
        return call.run(), 0
    return _one_by_one(call, 1, xp.int64)


def _isin(call: BatchedCall) -> tuple[Any, Any]:
    """Batch ``isin``: in one call for shared test elements, else sample by sample."""
    return (call.run(), 0) if call.dims[1] is None else _one_by_one(call, 0, xp.bool)


def _one_by_one(call: BatchedCall, place: int, dtype: Any) -> tuple[Any, Any]:
    """Call the operator for each sample; return the results stacked, of dtype ``dtype``.

    Each has the sample shape of the argument at ``place``.
    """
    found = []
    for n in range(call.batch_size):
        args = [
            value if dim is None else value[n]
            for value, dim in zip(call.args, call.dims, strict=True)
        ]
        found.append(call.run(args))
    if not found:
        shape = call.shape(place) if isinstance(call.args[place], Tensor) else ()
        device = next(each.device for each in call.args if isinstance(each, Tensor))
        return xp.zeros((0, *shape), dtype=dtype, device=device), 0
    return xp.stack(found), 0


_AXES = ("all", "any", "count_nonzero", "max", "mean", "min", "prod", "std", "sum", "var")

REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(_AXES, _reduction),
    **dict.fromkeys(("argmax", "argmin"), _place_of_extremum),
    **dict.fromkeys(("cumulative_prod", "cumulative_sum"), _cumulative),
    "argsort": _order,
    "sort": along_axis,
    "diff": _diff,
    "linalg_vector_norm": _reduction,
    **dict.fromkeys(("searchsorted", "searchsorted.Scalar"), _searchsorted),
    **dict.fromkeys(("isin", "isin.Scalar", "isin.ScalarFirst"), _isin),
}
