"""Derivatives of products of vectors, matrices and tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.functionalities.derivative import Formulas, Forward
from opdispatch.native.array.derivatives.namespace import adjoint, conj, with_forward, xp

Axes = int | Sequence[Sequence[int]]


def _column(x: Any) -> Any:
    return xp.expand_dims(x, axis=-1)


def _row(x: Any) -> Any:
    return xp.expand_dims(x, axis=-2)


def _matmul_first(grad: Any, x1_shape: Any, x2: Any) -> Any:
    if x2.ndim == 1:
        return _column(grad) * conj(x2)
    if len(x1_shape) == 1 and x2.ndim > 2:
        return xp.squeeze(xp.matmul(_row(grad), adjoint(x2)), axis=-2)
    return xp.matmul(grad, adjoint(x2))


def _matmul_second(grad: Any, x1: Any, x2_shape: Any) -> Any:
    if x1.ndim == 1:
        return conj(x1) * grad if len(x2_shape) == 1 else _column(conj(x1)) * _row(grad)
    if len(x2_shape) == 1 and x1.ndim > 2:
        return xp.squeeze(xp.matmul(adjoint(x1), _column(grad)), axis=-1)
    if len(x2_shape) == 2 and x1.ndim > 2:  # one product instead of a batch to sum
        rows = math.prod(x1.shape[:-1])  # -1 is ambiguous for empty arrays
        x1 = xp.reshape(x1, (rows, x1.shape[-1]))
        grad = xp.reshape(grad, (rows, grad.shape[-1]))
    return xp.matmul(adjoint(x1), grad)


def _contracted(axes: Axes, ndim1: int, ndim2: int) -> tuple[list[int], list[int]]:
    """Return the contracted axes of both arguments as nonnegative numbers, in pairs."""
    if isinstance(axes, int):
        return [*range(ndim1 - axes, ndim1)], [*range(axes)]
    first, second = axes
    return [axis % ndim1 for axis in first], [axis % ndim2 for axis in second]


def _ordered(x: Any, axes: Sequence[int]) -> Any:
    """Return ``x`` permuted so that dimension n becomes dimension ``axes[n]``."""
    return xp.permute_dims(x, [axes.index(n) for n in range(len(axes))])


def _tensordot_first(grad: Any, x1_shape: Any, x2: Any, axes: Axes) -> Any:
    ndim = len(x1_shape)
    mine, others = _contracted(axes, ndim, x2.ndim)
    free = [n for n in range(ndim) if n not in mine]
    free_others = [n for n in range(x2.ndim) if n not in others]
    product = xp.tensordot(grad, conj(x2), axes=[[*range(len(free), grad.ndim)], free_others])
    by_others = sorted(range(len(mine)), key=lambda n: others[n])
    return _ordered(product, [*free, *(mine[n] for n in by_others)])


def _tensordot_second(grad: Any, x1: Any, x2_shape: Any, axes: Axes) -> Any:
    ndim = len(x2_shape)
    others, mine = _contracted(axes, x1.ndim, ndim)
    free = [n for n in range(ndim) if n not in mine]
    free_others = [n for n in range(x1.ndim) if n not in others]
    product = xp.tensordot(conj(x1), grad, axes=[free_others, [*range(len(free_others))]])
    by_others = sorted(range(len(mine)), key=lambda n: others[n])
    return _ordered(product, [*(mine[n] for n in by_others), *free])


_TENSORDOT: Formulas = {"x1": _tensordot_first, "x2": _tensordot_second}

_PRODUCTS: dict[str, Formulas] = {
    "linalg_cross": {
        "x1": lambda grad, x2, axis: xp.linalg.cross(conj(x2), grad, axis=axis),
        "x2": lambda grad, x1, axis: xp.linalg.cross(grad, conj(x1), axis=axis),
    },
    "linalg_outer": {
        "x1": lambda grad, x2: xp.matmul(grad, conj(x2)),
        "x2": lambda grad, x1: xp.matmul(conj(x1), grad),
    },
    "matmul": {"x1": _matmul_first, "x2": _matmul_second},
    "tensordot": _TENSORDOT,
    "tensordot.dims": _TENSORDOT,
    # vecdot conjugates its first argument.
    "vecdot": {
        "x1": lambda grad, x2, axis: conj(xp.expand_dims(grad, axis=axis)) * x2,
        "x2": lambda grad, x1, axis: xp.expand_dims(grad, axis=axis) * x1,
    },
}
PRODUCTS = with_forward(Forward.MULTILINEAR, _PRODUCTS)
