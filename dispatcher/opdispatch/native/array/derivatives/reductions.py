"""Derivatives of reductions, cumulative functions and sorting."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from opdispatch.arrays.level_array import has_elements
from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.functionalities.forward_derivative import moved_by
from opdispatch.native.array.derivatives.manipulation import cut, part_of
from opdispatch.native.array.derivatives.namespace import conj, masked, with_forward, xp, zeros_like

Axes = Sequence[int] | None


def _axes_of(shape: Sequence[int], axis: Axes) -> list[int]:
    return [*range(len(shape))] if axis is None else [each % len(shape) for each in axis]


def kept(grad: Any, shape: Sequence[int], axis: Axes, keepdims: bool) -> Any:
    """Return ``grad`` of a reduction with the reduced axes as extents of 1, to broadcast with x."""
    if keepdims or not grad.shape:
        return grad
    axes = _axes_of(shape, axis)
    return xp.reshape(grad, [1 if n in axes else extent for n, extent in enumerate(shape)])


def _sum(grad: Any, x_shape: Any, axis: Axes, keepdims: bool) -> Any:
    """Return the gradient of ``sum``: ``grad``, broadcast to ``x_shape``."""
    return xp.broadcast_to(kept(grad, x_shape, axis, keepdims), x_shape)


def _count(shape: Sequence[int], axis: Axes) -> int:
    return math.prod(shape[n] for n in _axes_of(shape, axis))


def _mean(grad: Any, x_shape: Any, axis: Axes, keepdims: bool) -> Any:
    return _sum(grad / _count(x_shape, axis), x_shape, axis, keepdims)


def _var(grad: Any, x: Any, axis: Axes, correction: Any, keepdims: bool) -> Any:
    freedom = max(0, _count(x.shape, axis) - correction)
    from_mean = x - xp.mean(x, axis=axis, keepdims=True)
    return kept(grad, x.shape, axis, keepdims) * (2 * from_mean) / freedom


def _deviates(x: Any, axis: Axes, keepdims: bool, result: Any) -> Any:
    """Return a mask of the results whose numbers are not all equal.

    ``result != 0`` does not suffice: the mean of equal numbers is rounded, so that their standard
    deviation may be a rounding error.
    """
    if 0 in x.shape:
        return result != 0
    first = x
    for n in _axes_of(x.shape, axis):
        first = part_of(first, n, 0, 1)
    return (result != 0) & xp.any(x != first, axis=axis, keepdims=keepdims)


def _std(grad: Any, x: Any, axis: Axes, correction: Any, keepdims: bool, result: Any) -> Any:
    """Return the gradient of ``std``, which is 0 where all numbers are equal, as in PyTorch."""
    deviates = _deviates(x, axis, keepdims, result)
    of_var = masked(deviates, grad / xp.where(deviates, 2 * result, 1.0))
    return _var(of_var, x, axis, correction, keepdims)


def shared(grad: Any, mask: Any, axis: Axes) -> Any:
    """Return ``grad`` divided equally among the elements along ``axis`` where ``mask`` is set."""
    return masked(mask, grad / xp.sum(xp.astype(mask, grad.dtype), axis=axis, keepdims=True))


def mean_of(x_t: Any, mask: Any, axis: Axes, keepdims: bool) -> Any:
    """Return the mean along ``axis`` of the tangent where ``mask`` is set; NaN if nowhere."""
    count = xp.sum(xp.astype(mask, x_t.dtype), axis=axis, keepdims=keepdims)
    return xp.sum(masked(mask, x_t), axis=axis, keepdims=keepdims) / count


def _extremum(grad: Any, x: Any, axis: Axes, keepdims: bool, result: Any) -> Any:
    """Return the gradient of ``max`` or ``min``, shared equally among ties."""
    mask = x == kept(result, x.shape, axis, keepdims)
    return shared(kept(grad, x.shape, axis, keepdims), mask, axis)


def _extremum_forward(x_t: Any, x: Any, axis: Axes, keepdims: bool, result: Any) -> Any:
    return mean_of(x_t, x == kept(result, x.shape, axis, keepdims), axis, keepdims)


# -- products: dividing by an element fails if it is zero, or the product zero or infinite ---------


def _cannot_divide(x: Any, product: Any) -> bool:
    """Return whether a product may be 0 or not finite, so that dividing it by an element fails."""
    if not has_elements(x):
        return True
    return not bool(xp.all(xp.logical_and(product != 0, xp.isfinite(product))))


def product_of_others(x: Any) -> Any:
    """Return for each element the product of all others along the last dimension."""
    count = x.shape[-1]
    if not count:
        return x
    # Leave out the product of all elements: its derivative is NaN for an infinity times zero.
    earlier, later = part_of(x, -1, 0, count - 1), xp.flip(part_of(x, -1, 1, count), axis=-1)
    before = xp.cumulative_prod(earlier, axis=-1, include_initial=True)
    after = xp.cumulative_prod(later, axis=-1, include_initial=True)
    return before * xp.flip(after, axis=-1)


def _prod(grad: Any, x: Any, axis: Axes, keepdims: bool, result: Any) -> Any:
    grad = kept(grad, x.shape, axis, keepdims)
    if not _cannot_divide(x, result):
        return grad * conj(kept(result, x.shape, axis, keepdims) / x)
    axes = _axes_of(x.shape, axis)
    order = [n for n in range(len(x.shape)) if n not in axes] + axes
    moved = xp.permute_dims(x, order)
    rest = moved.shape[: len(order) - len(axes)]
    others = product_of_others(xp.reshape(moved, (*rest, _count(x.shape, axis))))
    others = xp.permute_dims(
        xp.reshape(others, moved.shape), [order.index(n) for n in range(len(order))]
    )
    return grad * conj(others)


def _sums_from_the_end(x: Any, axis: int) -> Any:
    return xp.flip(xp.cumulative_sum(xp.flip(x, axis=axis), axis=axis), axis=axis)


def _along(x: Any, axis: int | None) -> tuple[Any, int]:
    """Return ``x`` with at least one dimension, and ``axis``, 0 if it is None."""
    return (x if x.shape else xp.reshape(x, (1,))), 0 if axis is None else axis


def _without_initial(x: Any, axis: int, include_initial: bool) -> Any:
    return part_of(x, axis, 1, x.shape[axis]) if include_initial else x


def _cumulative_sum(grad: Any, x_shape: Any, axis: int | None, include_initial: bool) -> Any:
    axis = 0 if axis is None else axis
    grad = _without_initial(grad, axis, include_initial)
    return xp.reshape(_sums_from_the_end(grad, axis), x_shape)


def _cumulative_prod(
    grad: Any, x: Any, axis: int | None, include_initial: bool, result: Any
) -> Any:
    given = x.shape
    x, axis = _along(x, axis)
    grad = _without_initial(grad, axis, include_initial)
    result = _without_initial(result, axis, include_initial)
    if not _cannot_divide(x, result):
        gradient = _sums_from_the_end(grad * conj(result), axis) / conj(x)
        return xp.reshape(gradient, given)
    if x.shape[axis] == 0:
        return xp.zeros_like(xp.reshape(x, given))
    # Work backwards: each suffix sum follows from the next in one step.
    each_x, each_grad = xp.unstack(conj(x), axis=axis), xp.unstack(grad, axis=axis)
    # Leave out the product of all elements: its derivative is NaN for an infinity times zero.
    earlier = part_of(conj(x), axis, 0, x.shape[axis] - 1)
    before = xp.unstack(xp.cumulative_prod(earlier, axis=axis), axis=axis)
    later, parts = None, []
    for n in reversed(range(len(each_x))):
        later = each_grad[n] if later is None else each_grad[n] + each_x[n + 1] * later
        parts.append(before[n - 1] * later if n else later)
    return xp.reshape(xp.stack(parts[::-1], axis=axis), given)


# -- differences and order -------------------------------------------------------------------------


def _of_differences(grad: Any, extent: int, axis: int, n: int) -> Any:
    """Return the gradient of the argument of ``diff``, of that extent along ``axis``."""
    if grad.shape[axis] == 0:
        shape = list(grad.shape)
        shape[axis] = extent
        return xp.zeros(shape, dtype=grad.dtype, device=grad.device)
    for _ in range(n):
        zero = zeros_like(part_of(grad, axis, 0, 1))
        grad = xp.concat([zero, grad], axis=axis) - xp.concat([grad, zero], axis=axis)
    return grad


def _diff_parts(grad: Any, x_shape: Any, axis: int, n: int, prepend: Any, append: Any) -> list[Any]:
    extents = [
        0 if each is None else each.shape[axis] if each.shape else 1 for each in (prepend, append)
    ]
    extents.insert(1, x_shape[axis])
    return cut(_of_differences(grad, sum(extents), axis, n), extents, axis)


def _diff(grad: Any, x_shape: Any, axis: int, n: int, prepend: Any, append: Any) -> Any:
    return _diff_parts(grad, x_shape, axis, n, prepend, append)[1]


def _diff_prepend(grad: Any, x_shape: Any, axis: int, n: int, prepend: Any, append: Any) -> Any:
    return _diff_parts(grad, x_shape, axis, n, prepend, append)[0]


def _diff_append(grad: Any, x_shape: Any, axis: int, n: int, prepend: Any, append: Any) -> Any:
    return _diff_parts(grad, x_shape, axis, n, prepend, append)[2]


def _sort(grad: Any, x: Any, axis: int, descending: bool, stable: bool) -> Any:
    order = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return xp.take_along_axis(grad, xp.argsort(order, axis=axis), axis=axis)


def _cumulative_prod_forward(
    x_t: Any, x: Any, axis: int | None, include_initial: bool, result: Any
) -> Any:
    x, axis = _along(x, axis)
    x_t = xp.reshape(x_t, x.shape)
    if not _cannot_divide(x, result):
        sums = xp.cumulative_sum(x_t / x, axis=axis, include_initial=include_initial)
        return xp.reshape(result * sums, result.shape)
    before = result if result.shape else xp.reshape(result, (1,))
    if not include_initial:
        before = part_of(before, axis, 0, max(0, before.shape[axis] - 1))
        before = xp.concat([xp.ones_like(part_of(x, axis, 0, 1)), before], axis=axis)
    else:
        before = part_of(before, axis, 0, x.shape[axis])
    # The tangent of each element, times the product of the elements before it.
    is_finite = has_elements(x) and bool(xp.all(xp.isfinite(before) & xp.isfinite(x)))
    by = operator.mul if is_finite else moved_by
    own = xp.unstack(by(before, x_t), axis=axis)
    each_x = xp.unstack(x, axis=axis)
    parts: list[Any] = []
    for n, part in enumerate(own):
        parts.append(part if n == 0 else by(each_x[n], parts[-1]) + part)
    if not parts:
        return xp.zeros_like(result)
    if include_initial:
        parts.insert(0, xp.zeros_like(parts[0]))
    return xp.reshape(xp.stack(parts, axis=axis), result.shape)


def _sort_forward(x_t: Any, x: Any, axis: int, descending: bool, stable: bool) -> Any:
    order = xp.argsort(x, axis=axis, descending=descending, stable=stable)
    return xp.take_along_axis(x_t, order, axis=axis)


_LINEAR: dict[str, Formulas] = {
    "cumulative_sum": {"x": _cumulative_sum},
    "diff": {"x": _diff, "prepend": _diff_prepend, "append": _diff_append},
    "mean": {"x": _mean},
    "sum": {"x": _sum},
}
_OTHERS: dict[str, Formulas] = {
    "cumulative_prod": {"x": _cumulative_prod, RESULT: _cumulative_prod_forward},
    "max": {"x": _extremum, RESULT: _extremum_forward},
    "min": {"x": _extremum, RESULT: _extremum_forward},
    "prod": {"x": _prod},
    "sort": {"x": _sort, RESULT: _sort_forward},
    "std": {"x": _std},
    "var": {"x": _var},
}
REDUCTIONS: dict[str, Formulas] = {
    **with_forward(Forward.LINEAR, _LINEAR),
    **with_forward(Forward.REDUCTION, _OTHERS),
}
