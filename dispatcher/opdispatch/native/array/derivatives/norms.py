"""Derivatives of norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.functionalities.forward_derivative import sum_of_moved
from opdispatch.native.array.derivatives.namespace import (
    conj,
    direction,
    masked,
    with_forward,
    xp,
    zeros_like,
)
from opdispatch.native.array.derivatives.reductions import kept, mean_of, shared

_MATRIX = (-2, -1)


def _vector_norm(
    grad: Any, x: Any, axis: Sequence[int] | None, keepdims: bool, ord: Any, result: Any
) -> Any:
    grad, norm = kept(grad, x.shape, axis, keepdims), kept(result, x.shape, axis, keepdims)
    if ord == 0:
        return None  # no gradient flows to x
    if ord in (math.inf, -math.inf):
        return direction(x) * shared(grad, xp.abs(x) == norm, axis)
    slope = _slope_of_powers(x, ord)
    return grad * (slope if ord == 1 else slope / _divisor(norm, ord))


def _slope_of_powers(x: Any, ord: float) -> Any:
    """Return the derivative of ``sum(abs(x) ** ord)``, divided by ``ord``."""
    if ord == 2:
        return x
    if ord > 2:
        return x * xp.abs(x) ** (ord - 2)
    return direction(x) if ord == 1 else direction(x) * masked(x != 0, xp.abs(x) ** (ord - 1))


def _divisor(norm: Any, ord: float) -> Any:
    """Return ``norm ** (ord - 1)``; infinity for zero norms if ``ord > 1``: their gradient is 0."""
    divisor = xp.where(norm != 0, norm, math.inf) if ord > 1 else norm
    return divisor if ord == 2 else divisor ** (ord - 1)


def _vector_norm_forward(
    x_t: Any, x: Any, axis: Sequence[int] | None, keepdims: bool, ord: Any, result: Any
) -> Any:
    if ord == 0:
        return None
    if ord in (math.inf, -math.inf):
        mask = xp.abs(x) == kept(result, x.shape, axis, keepdims)
        return mean_of(conj(direction(x)) * x_t, mask, axis, keepdims)
    moved = sum_of_moved(conj(_slope_of_powers(x, ord)), x_t, axis, keepdims)
    # Divide last: the divisor is common to all elements, and may be 0 or infinite.
    return moved if ord == 1 else moved / _divisor(result, ord)


def _fro(grad: Any, x: Any, keepdims: bool, result: Any) -> Any:
    return _vector_norm(grad, x, _MATRIX, keepdims, 2, result)


def _matrix_norm(grad: Any, x: Any, keepdims: bool, ord: Any, result: Any) -> Any:
    if ord in (None, "fro"):
        return _fro(grad, x, keepdims, result)
    if 0 in x.shape[-2:]:
        return zeros_like(x)
    grad = kept(grad, x.shape, _MATRIX, keepdims)
    if ord in ("nuc", 2, -2):
        u, s, vh = xp.linalg.svd(x, full_matrices=False)
        values = xp.expand_dims(s, axis=-2)
        return xp.matmul(u * (grad if ord == "nuc" else _of_one(grad, values, ord)), vh)
    # The 1-norm and inf-norm are extrema of the absolute sums of columns and rows.
    sums = xp.sum(xp.abs(x), axis=-2 if abs(ord) == 1 else -1, keepdims=True)
    return direction(x) * _of_one(grad, sums, ord)


def _of_one(grad: Any, values: Any, ord: Any) -> Any:
    """Return the gradient of the maximum or minimum of ``values``, shared equally among ties."""
    choose = xp.max if ord > 0 else xp.min
    return shared(grad, values == choose(values, axis=_MATRIX, keepdims=True), _MATRIX)


_NORM: Formulas = {"x": _matrix_norm}

_NORMS: dict[str, Formulas] = {
    "linalg_matrix_norm": _NORM,
    "linalg_matrix_norm.ord": _NORM,
    "linalg_vector_norm": {"x": _vector_norm, RESULT: _vector_norm_forward},
}
NORMS = with_forward(Forward.REDUCTION, _NORMS)
