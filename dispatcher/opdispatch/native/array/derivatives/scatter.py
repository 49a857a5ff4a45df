"""Gradients of gather operators, whose indices may repeat.

The standard has no operator that adds at places. So what goes to the same place is brought
together by sorting, and added up in pairs: in a few steps, however often a place is used.
"""

from __future__ import annotations

import math
from typing import Any

from opdispatch.arrays.level_array import is_batched
from opdispatch.native.array.derivatives.manipulation import part_of
from opdispatch.native.array.derivatives.namespace import OPERATORS, masked, xp, zeros_for


def add_at(extent: int, places: Any, grad: Any) -> Any:
    """Return zeros of that extent in the first dimension, ``grad[n]`` added at ``places[n]``."""
    places = xp.astype(places, xp.int64)  # of 8 bits, it may not have room for the extent
    places = xp.where(places < 0, places + extent, places)
    order = xp.argsort(places)
    places, grad = xp.take(places, order), xp.take(grad, order, axis=0)
    count, step = places.shape[0], 1
    batched = is_batched(places)  # then its elements decide nothing here
    column = (-1, *[1] * (grad.ndim - 1))
    while step < count:
        same = part_of(places, 0, 0, count - step) == part_of(places, 0, step, count)
        if not batched and not xp.any(same):
            break
        # Each adds what is `step` behind, which holds the sum of the next `step` of its place.
        behind = masked(xp.reshape(same, column), part_of(grad, 0, step, count))
        rest = xp.zeros_like(part_of(grad, 0, 0, step))
        grad = grad + xp.concat([behind, rest])
        step *= 2
    # So the first of each place has the sum of all.
    first = xp.diff(places, prepend=part_of(places, 0, 0, 1) - 1) != 0
    if batched:  # the others of each place are written behind the end, which is cut off
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
    """Return zeros of that shape, with the parts of ``grad`` along an axis added at ``places``."""
    moved = xp.moveaxis(grad, axis, 0)
    return xp.moveaxis(add_at(shape[axis], places, moved), 0, axis)


def add_at_elements(shape: Any, places: Any, grad: Any) -> Any:
    """Return zeros of that shape with ``grad`` added at ``places``, counted through the whole
    shape.
    """
    size = math.prod(shape)
    flat = add_at(size, xp.reshape(places, (-1,)), xp.reshape(grad, (-1,)))
    return xp.reshape(flat, shape)


def places_of(x_shape: Any, device: str) -> Any:
    """Return the place of each element of a shape, counted through it."""
    return xp.reshape(xp.arange(math.prod(x_shape), device=device), x_shape)
