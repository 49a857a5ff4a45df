"""Derivatives of operators that reshape, permute, split and join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.functionalities.derivative import Formulas, Forward
from opdispatch.native.array.derivatives.namespace import conj, with_forward, xp, zeros_like

Shape = Sequence[int]


def part_of(x: Any, axis: int, start: int, stop: int) -> Any:
    """Return the slice ``start:stop`` along ``axis``."""
    return x[(*(slice(None),) * (axis % x.ndim), slice(start, stop))]


def cut(grad: Any, extents: Sequence[int], axis: int) -> list[Any]:
    """Split ``grad`` along ``axis`` into consecutive parts of those extents."""
    parts, start = [], 0
    for extent in extents:
        parts.append(part_of(grad, axis, start, start + extent))
        start += extent
    return parts


def resized(x: Any, extent: int, axis: int) -> Any:
    """Return ``x`` truncated or padded with zeros at the end of ``axis`` to ``extent``."""
    given = x.shape[axis]
    if given >= extent:
        return x if given == extent else part_of(x, axis, 0, extent)
    shape = list(x.shape)
    shape[axis] = extent - given
    return xp.concat([x, xp.zeros(shape, dtype=x.dtype, device=x.device)], axis=axis)


def _concat(grad: Any, arrays_shape: Sequence[Shape], axis: int | None) -> list[Any]:
    if axis is not None:
        return cut(grad, [shape[axis] for shape in arrays_shape], axis)
    parts = cut(grad, [math.prod(shape) for shape in arrays_shape], 0)
    return [xp.reshape(part, shape) for part, shape in zip(parts, arrays_shape, strict=True)]


def _unstack(grads: Sequence[Any], axis: int) -> Any:
    zeros = zeros_like(next(grad for grad in grads if grad is not None))
    return xp.stack([zeros if grad is None else grad for grad in grads], axis=axis)


def _meshgrid(grads: Sequence[Any], arrays_shape: Sequence[Shape], indexing: str) -> list[Any]:
    axes = [*range(len(grads))]
    if indexing == "xy":
        axes[:2] = reversed(axes[:2])
    return [
        None
        if grad is None
        else xp.reshape(xp.sum(grad, axis=[n for n in range(len(axes)) if n != axis]), shape)
        for grad, axis, shape in zip(grads, axes, arrays_shape, strict=True)
    ]


def _permute_dims(grad: Any, axes: Sequence[int]) -> Any:
    places = [axis % len(axes) for axis in axes]
    return xp.permute_dims(grad, [places.index(n) for n in range(len(places))])


def _repeat(grad: Any, x_shape: Shape, repeats: int, axis: int | None) -> Any:
    if axis is None or not x_shape:
        return xp.reshape(_summed_last(grad, (*x_shape, repeats)), x_shape)
    place = axis % len(x_shape) + 1
    split = xp.reshape(grad, (*x_shape[:place], repeats, *x_shape[place:]))
    return xp.sum(split, axis=place, dtype=grad.dtype)


def _summed_last(grad: Any, shape: Shape) -> Any:
    return xp.sum(xp.reshape(grad, shape), axis=-1, dtype=grad.dtype)


def _tile(grad: Any, x_shape: Shape, repetitions: Sequence[int]) -> Any:
    count = max(len(x_shape), len(repetitions))
    extents = (*(1,) * (count - len(x_shape)), *x_shape)
    times = (*(1,) * (count - len(repetitions)), *repetitions)
    pairs = [each for pair in zip(times, extents, strict=True) for each in pair]
    split = xp.reshape(grad, pairs)
    return xp.reshape(xp.sum(split, axis=[*range(0, 2 * count, 2)], dtype=grad.dtype), x_shape)


def _astype(grad: Any, x_device: str) -> Any:
    """Return the gradient, moved to the device of the argument."""
    if grad.device == x_device:
        return grad
    return xp.astype(grad, grad.dtype, device=x_device)


_MANIPULATION: dict[str, Formulas] = {
    # The engine casts gradients to the input's dtype, and sums over broadcast dimensions.
    "_conj": {"x": lambda grad: conj(grad)},
    "_neg_view": {"x": lambda grad: -grad},
    "astype": {"x": _astype},
    "broadcast_arrays": {"arrays": lambda grads: grads},
    "broadcast_to": {"x": lambda grad: grad},
    "concat": {"arrays": _concat},
    "expand_dims": {"x": lambda grad, x_shape: xp.reshape(grad, x_shape)},
    "flip": {"x": lambda grad, axis: xp.flip(grad, axis=axis)},
    "meshgrid": {"arrays": _meshgrid},
    "moveaxis": {"x": lambda grad, source, destination: xp.moveaxis(grad, destination, source)},
    "permute_dims": {"x": _permute_dims},
    "repeat": {"x": _repeat},
    "reshape": {"x": lambda grad, x_shape: xp.reshape(grad, x_shape)},
    "roll": {"x": lambda grad, shift, axis: xp.roll(grad, [-n for n in shift], axis=axis)},
    "squeeze": {"x": lambda grad, x_shape: xp.reshape(grad, x_shape)},
    "stack": {"arrays": lambda grad, axis: xp.unstack(grad, axis=axis)},
    "tile": {"x": _tile},
    "tril": {"x": lambda grad, k: xp.tril(grad, k=k)},
    "triu": {"x": lambda grad, k: xp.triu(grad, k=k)},
    "unstack": {"x": _unstack},
}
MANIPULATION = with_forward(Forward.LINEAR, _MANIPULATION)
