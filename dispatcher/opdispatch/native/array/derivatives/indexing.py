"""Derivatives of indexing, assignment, ``take`` and ``take_along_axis``."""

from __future__ import annotations

import math
from typing import Any

from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.native.array.derivatives.namespace import (
    OPERATORS,
    copy_for,
    masked,
    with_forward,
    xp,
    zeros_for,
    zeros_like,
)
from opdispatch.native.array.derivatives.scatter import add_along, add_at_elements, places_of


def _placed(grad: Any, x_shape: Any, start: Any, stop: Any, step: Any) -> Any:
    """Return zeros of shape ``x_shape`` with ``grad`` written at the index."""
    whole = zeros_for(x_shape, grad)
    return OPERATORS.setitem_.Tensor(whole, start, stop, step, [], grad)


def _placed_by_arrays(
    grad: Any, x_shape: Any, start: Any, stop: Any, step: Any, indices: Any
) -> Any:
    """Return zeros of shape ``x_shape`` with ``grad`` added at the index, which may repeat."""
    if all(each is None or each.dtype.kind == "b" for each in indices):  # masks do not repeat
        whole = zeros_for(x_shape, grad)
        return OPERATORS.setitem_.Tensor(whole, start, stop, step, indices, grad)
    places = OPERATORS.getitem.Tensor(places_of(x_shape, grad.device), start, stop, step, indices)
    return add_at_elements(x_shape, places, grad)


def _cleared(grad: Any, start: Any, stop: Any, step: Any, indices: Any) -> Any:
    """Return the gradient of the target before the write: ``grad`` with zeros at the index."""
    given = [each for each in indices if each is not None]
    whole = copy_for(grad, *given)
    return OPERATORS.setitem_.Scalar(whole, start, stop, step, indices, 0.0)


def _written(grad: Any, start: Any, stop: Any, step: Any, indices: Any, value_shape: Any) -> Any:
    """Return the gradient of the written value, whose shape may have additional leading ones."""
    if indices:
        part = OPERATORS.getitem.Tensor(grad, start, stop, step, indices)
    else:
        part = OPERATORS.getitem.default(grad, start, stop, step)
    more = len(value_shape) - part.ndim
    return xp.reshape(part, ((1,) * more + part.shape)) if more > 0 else part


def _write_forward(
    x_t: Any, value_t: Any, x: Any, start: Any, stop: Any, step: Any, indices: Any
) -> Any:
    """Return the tangent of ``setitem``: ``x_t`` with ``value_t`` written; None counts as zeros."""
    whole = xp.zeros_like(x) if x_t is None else x_t
    if value_t is None:
        return OPERATORS.setitem.Scalar(whole, start, stop, step, indices, 0.0)
    return OPERATORS.setitem.Tensor(whole, start, stop, step, indices, value_t)


def _take(grad: Any, x_shape: Any, indices: Any, axis: int | None) -> Any:
    if axis is None or not x_shape:
        return add_at_elements(x_shape, indices, grad)
    before, after = x_shape[:axis], x_shape[axis:][1:]
    grad = xp.reshape(grad, (*before, math.prod(indices.shape), *after))
    return add_along(x_shape, axis, xp.reshape(indices, (-1,)), grad)


def _take_along_axis(grad: Any, x_shape: Any, indices: Any, axis: int) -> Any:
    if indices.shape[axis] == 1:  # as for class labels: no place repeats
        extent, column = x_shape[axis], [1] * len(x_shape)
        column[axis] = extent
        places = xp.reshape(xp.arange(extent, device=grad.device), column)
        if indices.dtype != places.dtype:  # an int8 cannot hold a large extent
            indices = xp.astype(indices, places.dtype)
        return masked(xp.remainder(indices, extent) == places, grad)
    places = places_of(x_shape, grad.device)
    return add_at_elements(x_shape, xp.take_along_axis(places, indices, axis=axis), grad)


def _repeat(grad: Any, x_shape: Any, repeats: Any, axis: int | None) -> Any:
    if axis is None or not x_shape:
        return add_at_elements(x_shape, xp.repeat(places_of(x_shape, grad.device), repeats), grad)
    places = xp.repeat(xp.arange(x_shape[axis], device=grad.device), repeats)
    return add_along(x_shape, axis, places, grad)


def _real_part_cleared(grad: Any) -> Any:
    return OPERATORS.real_scatter.default(grad, xp.zeros_like(xp.real(grad)))


def _imag_part_cleared(grad: Any) -> Any:
    return OPERATORS.imag_scatter.default(grad, xp.zeros_like(xp.imag(grad)))


_WRITTEN: dict[str, Formulas] = {
    "Scalar": {"x": _cleared, RESULT: Forward.ELEMENTWISE},
    "Tensor": {"x": _cleared, "value": _written, RESULT: _write_forward},
}
_COPIED: Formulas = {
    "x": zeros_like,
    "src": lambda grad: grad,
    RESULT: lambda src_t: src_t,
}

_INDEXING: dict[str, Formulas] = {
    "copy": _COPIED,
    "copy_": _COPIED,
    "getitem": {"x": _placed},
    "getitem.Tensor": {"x": _placed_by_arrays},
    "repeat.Tensor": {"x": _repeat},
    "imag_scatter": {"x": _imag_part_cleared, "src": lambda grad: xp.imag(grad)},
    "real_scatter": {"x": _real_part_cleared, "src": lambda grad: xp.real(grad)},
    **{f"setitem.{overload}": formulas for overload, formulas in _WRITTEN.items()},
    **{f"setitem_.{overload}": formulas for overload, formulas in _WRITTEN.items()},
    "take": {"x": _take},
    "take_along_axis": {"x": _take_along_axis},
}
INDEXING = with_forward(Forward.LINEAR, _INDEXING)
