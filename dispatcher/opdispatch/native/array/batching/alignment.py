"""Align samples of different numbers of dimensions, and translate axes of samples.

Throughout, a batched tensor has the shape (B, *sample).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.functorch.batching_rule import BatchedCall
from opdispatch.native.array.derivatives.namespace import xp
from opdispatch.native.array.operators.meta_shapes import check_axes, check_axis, refusal


def with_ndim(x: Any, dim: int | None, ndim: int) -> Any:
    """Return ``x`` with samples of at least ``ndim`` dimensions.

    New dimensions, of extent 1, precede those of the sample.
    """
    if dim is None or (missing := ndim + 1 - x.ndim) <= 0:
        return x
    return xp.reshape(x, (x.shape[0], *[1] * missing, *x.shape[1:]))


def batched(x: Any, dim: int | None, batch_size: int) -> Any:
    """Return ``x`` with its batch dimension first; an unbatched ``x`` is broadcast to a view."""
    return x if dim is not None else xp.broadcast_to(x, (batch_size, *x.shape))


def aligned(call: BatchedCall, places: Sequence[int]) -> list[Any]:
    """Return all arguments, those at ``places`` reshaped so that they broadcast as samples do."""
    tensors = [place for place in places if call.args[place] is not None]
    ndim = max(call.ndim(place) for place in tensors)
    args = list(call.args)
    for place in tensors:
        args[place] = with_ndim(args[place], call.dims[place], ndim)
    return args


def axis_below(call: BatchedCall, axis: int, ndim: int) -> int:
    """Translate an axis of samples of ``ndim`` dimensions to an axis of the batched tensor.

    Raises ArgumentError for an axis out of range.
    """
    return check_axis(call.name, axis, ndim) + 1


def axes_below(
    call: BatchedCall, axes: Sequence[int] | None, ndim: int, *, repeatable: bool = False
) -> list[int]:
    """Translate axes of samples to axes of the batched tensor; None means all.

    Raises ArgumentError for an axis out of range, or a repeated one unless ``repeatable``.
    """
    return [axis + 1 for axis in check_axes(call.name, axes, ndim, repeatable=repeatable)]


def with_dimension(call: BatchedCall, axis: int) -> tuple[Any, int]:
    """Return the first argument, with samples of at least one dimension, and the translated axis.

    Like NumPy, treat a 0-d sample as a vector of one element.
    """
    x, ndim = call.args[0], call.ndim(0)
    if ndim == 0 and axis in (0, -1):
        return (x if call.dims[0] is None else flattened(x)), 1
    return x, axis_below(call, axis, ndim)


def flattened(x: Any) -> Any:
    """Return ``x``, of shape (B, *sample), reshaped to (B, n)."""
    return xp.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def check_matrices(call: BatchedCall) -> None:
    """Raise ArgumentError if samples of the first argument have fewer than two dimensions."""
    if call.ndim(0) < 2:
        raise refusal(
            call.name,
            f"was given a sample of shape {list(call.shape(0))}; expected 2 dimensions, or more",
        )
