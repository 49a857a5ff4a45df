"""Broadcast, check and reduce shapes and axes, without elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from opdispatch.errors import ArgumentError

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = int | Sequence[int] | None

_MOST_SHOWN = 8


def refusal(name: str, reason: str) -> ArgumentError:
    """Return the ArgumentError ``array::{name} {reason}``."""
    return ArgumentError(f"array::{name} {reason}", operator=name)


def show(*shapes: Sequence[int]) -> str:
    """Return shapes as text for messages, ``[2, 3] and [4]``, truncated if there are many."""
    listed = [str(list(shape)) for shape in shapes]
    if len(listed) > _MOST_SHOWN:
        listed[_MOST_SHOWN:] = [f"{len(listed) - _MOST_SHOWN} others"]
    return " and ".join(listed)


def as_tuple(extents: int | Sequence[int]) -> Shape:
    """Return ``extents`` as a tuple; a single number as a tuple of one."""
    return (extents,) if isinstance(extents, int) else tuple(extents)


def broadcast(name: str, *shapes: Shape) -> Shape:
    """Return the shape that all shapes broadcast to. Raises ArgumentError if they do not."""
    if len(set(shapes)) == 1:
        return shapes[0]
    ndim = max(map(len, shapes), default=0)
    aligned = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for extents in zip(*aligned, strict=True):
        wanted = {extent for extent in extents if extent != 1} or {1}
        if len(wanted) > 1:
            raise refusal(name, f"was given shapes {show(*shapes)}, which do not broadcast")
        result.append(wanted.pop())
    return tuple(result)


def check_axis(name: str, axis: int, ndim: int) -> int:
    """Return ``axis`` as a nonnegative number. Raises ArgumentError if it is out of range."""
    if not -ndim <= axis < ndim:
        raise refusal(name, f"was given axis {axis}, which is out of range for {ndim} dimensions")
    return axis % ndim


def check_axes(name: str, axes: Axes, ndim: int, *, repeatable: bool = False) -> Shape:
    """Return ``axes`` as nonnegative numbers; None means all.

    Raises ArgumentError for an axis out of range, or a repeated one unless ``repeatable``.
    """
    if axes is None:
        return tuple(range(ndim))
    checked = tuple(check_axis(name, axis, ndim) for axis in as_tuple(axes))
    if not repeatable and len(set(checked)) < len(checked):
        raise refusal(
            name, f"was given axes {list(as_tuple(axes))}, of which two are the same axis"
        )
    return checked


def check_axes_of_any(name: str, axes: Axes, ndim: int) -> Shape:
    """Like ``check_axes``, but accept a single axis 0 or -1 for a 0-d array, as NumPy does."""
    return () if ndim == 0 and axes in (0, -1) else check_axes(name, axes, ndim)


def reduce_shape(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    """Return ``shape`` without ``axes``, or with the extent 1 there if ``keepdims``."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def replace_extent(shape: Shape, axis: int, extent: int) -> Shape:
    """Return ``shape`` with ``extent`` at ``axis``."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def remove_axis(shape: Shape, axis: int) -> Shape:
    """Return ``shape`` without ``axis``."""
    return (*shape[:axis], *shape[axis + 1 :])
