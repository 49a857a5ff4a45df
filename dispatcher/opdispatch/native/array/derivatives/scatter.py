"""Gradients of gather operators, whose indices may repeat.

The array API standard has no scatter-add. So sort by place, then add neighbours of the same place
in log2(n) steps, however often a place repeats.
"""

from __future__ import annotations

import math
from typing import Any

from opdispatch.arrays.level_array import is_batched
from opdispatch.native.array.derivatives.manipulation import part_of
from opdispatch.native.array.derivatives.namespace import OPERATORS, masked, xp, zeros_for


def add_at(extent: int, places: Any, grad: Any) -> Any:
    """Return zeros of shape (extent, *grad.shape[1:]), with ``grad[n]`` added at ``places[n]``."""
    places = xp.astype(places, xp.int64)  # an int8 cannot hold a large extent
    places = xp.where(places < 0, places + extent, places)
    order = xp.argsort(places)
    places, grad = xp.take(places, order), xp.take(grad, order, axis=0)
    count, step = places.shape[0], 1
    batched = is_batched(places)  # no data-dependent control flow or shapes under vmap
    column = (-1, *[1] * (grad.ndim - 1))
    while step < count:
        same = part_of(places, 0, 0, count - step) == part_of(places, 0, step, count)
        if not batched and not xp.any(same):
            break
        # Element n + `step` holds the sum of `step` elements of its place: add it to element n.
        behind = masked(xp.reshape(same, column), part_of(grad, 0, step, count))
        rest = xp.zeros_like(part_of(grad, 0, 0, step))
        grad = grad + xp.concat([behind, rest])
        step *= 2
    # Now the first element of each place holds the sum of all.
    first = xp.diff(places, prepend=part_of(places, 0, 0, 1) - 1) != 0
    if batched:  # write the others to an additional row, which is cut off
        whole = zeros_for((extent + 1, *grad.shape[1:]), grad, places)
        at = [xp.where(first, places, extent)]
        write = OPERATORS.setitem_.Tensor
        return part_of(write(whole, [None], [None], [None], at, grad), 0, 0, extent)
    whole = zeros_for((extent, *grad.shape[1:]), grad)
    index = xp.nonzero(first)[0]
    at = [xp.take(places, index)]
    return OPERATORS.setitem_.Tensor(
        whole, [None], [None], [None], at, xp.take(grad, index, axis=0)
    )


def add_along(shape: Any, axis: int, places: Any, grad: Any) -> Any:
    """Return zeros of that shape, with slices of ``grad`` along ``axis`` added at ``places``."""
    moved = xp.moveaxis(grad, axis, 0)
    return xp.moveaxis(add_at(shape[axis], places, moved), 0, axis)


def add_at_elements(shape: Any, places: Any, grad: Any) -> Any:
    """Return zeros of that shape with ``grad`` added at ``places``, flat indices in C order."""
    size = math.prod(shape)
    flat = add_at(size, xp.reshape(places, (-1,)), xp.reshape(grad, (-1,)))
    return xp.reshape(flat, shape)


def places_of(x_shape: Any, device: str) -> Any:
    """Return the flat index, in C order, of each element: an int64 array of shape ``x_shape``."""
    return xp.reshape(xp.arange(math.prod(x_shape), device=device), x_shape)
