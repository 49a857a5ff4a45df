"""Derivatives of linear algebra: inverses, determinants, powers, diagonals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.arrays.level_array import has_elements
from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.native.array.derivatives.manipulation import part_of
from opdispatch.native.array.derivatives.namespace import (
    adjoint,
    as_complex,
    conj,
    masked,
    with_forward,
    xp,
    zeros_like,
)


def each_matrix(x: Any) -> Any:
    """Return ``x``, one number for each matrix, reshaped to (..., 1, 1)."""
    return xp.expand_dims(xp.expand_dims(x, axis=-1), axis=-1)


def _inv(grad: Any, result: Any) -> Any:
    back = adjoint(result)
    return -xp.matmul(xp.matmul(back, grad), back)


def _det(grad: Any, x: Any, result: Any) -> Any:
    singular = _is_singular(x, result)
    if not _may_be_any(x, singular):
        return each_matrix(grad * conj(result)) * adjoint(xp.linalg.inv(x))
    singular = each_matrix(singular)
    regular = xp.linalg.inv(xp.where(singular, _eye(x), x))
    adjugate = xp.where(singular, _adjugate(x), each_matrix(result) * regular)
    return each_matrix(grad) * adjoint(adjugate)


def _eye(x: Any) -> Any:
    return xp.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _is_singular(x: Any, det: Any) -> Any:
    """Return a mask, of the shape of ``det``, of the matrices singular to working precision."""
    if 0 in x.shape:
        return det == 0
    inverse = xp.linalg.inv(xp.where(each_matrix(det == 0), _eye(x), x))
    condition = xp.linalg.matrix_norm(x, ord=1) * xp.linalg.matrix_norm(inverse, ord=1)
    return xp.logical_or(det == 0, condition * xp.finfo(x.dtype).eps > 0.1)


def _adjugate(x: Any) -> Any:
    """Return the adjugates (transposed cofactor matrices), also of singular matrices.

    Uses products and sums only (Faddeev-LeVerrier), so that derivatives of every order exist.
    """
    count = x.shape[-1]
    eye = _eye(x)
    power = xp.broadcast_to(eye, x.shape)
    for n in range(1, count):
        product = xp.matmul(x, power)
        power = product - each_matrix(xp.linalg.trace(product)) / n * eye
    return power if count % 2 else -power


def _may_be_any(x: Any, condition: Any) -> bool:
    """Return whether the condition holds for any matrix; True if ``x`` has no elements to test."""
    return not has_elements(x) or bool(xp.any(condition))


def _slogdet(grads: Sequence[Any], x: Any, results: Sequence[Any]) -> Any:
    of_sign, of_log = grads
    if x.dtype.kind != "c":
        factor = zeros_like(of_sign) if of_log is None else of_log
    elif of_sign is None:
        factor = of_log
    else:  # a complex sign moves along the unit circle: the imaginary part of log(det)
        turn = as_complex(xp.imag(of_sign * xp.conj(results[0]))) * 1j
        factor = turn if of_log is None else turn + of_log
    return each_matrix(factor) * adjoint(_inverse_or_nan(x, results[1]))


def _slogdet_forward(x_t: Any, x: Any, results: Sequence[Any]) -> Any:
    sign, log = results
    along = xp.linalg.trace(xp.matmul(_inverse_or_nan(x, log), x_t))
    if x.dtype.kind != "c":
        return None, along
    return as_complex(xp.imag(along)) * 1j * sign, xp.real(along)


def _inverse_or_nan(x: Any, log: Any) -> Any:
    """Return the inverses; NaN for singular matrices, where ``log``, that of ``det``, is -inf."""
    if not _may_be_any(x, xp.isinf(log)):
        return xp.linalg.inv(x)
    is_singular = each_matrix(xp.isinf(log))
    inverse = xp.linalg.inv(xp.where(is_singular, _eye(x), x))
    # Multiply by NaN instead of replacing, so that higher derivatives are NaN as well.
    return inverse * xp.where(is_singular, math.nan, xp.ones_like(inverse))


def _solve_matrix(grad: Any, x1: Any, x2_shape: Any, result: Any) -> Any:
    of_right = _solve_right(grad, x1, x2_shape)
    if len(x2_shape) == 1:
        return -xp.expand_dims(of_right, axis=-1) * conj(xp.expand_dims(result, axis=-2))
    return -xp.matmul(of_right, adjoint(result))


def _solve_forward(x1_t: Any, x2_t: Any, x1: Any, result: Any, x2_shape: Any) -> Any:
    right = x2_t
    if x1_t is not None:
        turned = xp.matmul(x1_t, result)
        right = -turned if x2_t is None else x2_t - turned
    if len(x2_shape) == 1 and right.ndim > 1:  # one vector for each matrix
        return xp.squeeze(xp.linalg.solve(x1, xp.expand_dims(right, axis=-1)), axis=-1)
    return xp.linalg.solve(x1, right)


def _solve_right(grad: Any, x1: Any, x2_shape: Any) -> Any:
    """Return the gradient of ``x2``; a shared vector gets one for each matrix, summed later."""
    if len(x2_shape) > 1:
        return xp.linalg.solve(adjoint(x1), grad)
    return xp.squeeze(xp.linalg.solve(adjoint(x1), xp.expand_dims(grad, axis=-1)), axis=-1)


def _matrix_power(grad: Any, x: Any, n: int) -> Any:
    """Return the sum over i of ``x^i grad x^(n-1-i)``, with x the adjoint: a block of one power."""
    if n == 0:
        return zeros_like(grad)
    base = adjoint(x if n > 0 else xp.linalg.inv(x))
    zeros, count = zeros_like(base), base.shape[-1]
    rows = [xp.concat([base, grad], axis=-1), xp.concat([zeros, base], axis=-1)]
    power = xp.linalg.matrix_power(xp.concat(rows, axis=-2), abs(n))
    block = part_of(part_of(power, -2, 0, count), -1, count, 2 * count)
    return block if n > 0 else -xp.matmul(xp.matmul(base, block), base)


def _pinv(grad: Any, x: Any, result: Any) -> Any:
    """Return the gradient of ``pinv`` by Golub and Pereyra, valid where the rank is constant."""
    # https://doi.org/10.1137/0710036
    a, p, g = x, result, adjoint(grad)
    ph = adjoint(p)
    if a.shape[-2] <= a.shape[-1]:
        k = g @ p
        kph = k @ ph
        return -adjoint(p @ k) + kph - (a @ p) @ kph + (ph @ p) @ (g - k @ a)
    k = p @ g
    phk = ph @ k
    return -adjoint(k @ p) + (g - a @ k) @ p @ ph + phk - (phk @ p) @ a


def _pinv_forward(x_t: Any, x: Any, result: Any) -> Any:
    a, p, moved = x, result, adjoint(x_t)
    ph = adjoint(p)
    outside = (p @ ph) @ (moved - (moved @ a) @ p)
    inside = (moved - p @ (a @ moved)) @ (ph @ p)
    return outside + inside - p @ (x_t @ p)


def _diagonal(grad: Any, x_shape: Any, offset: int) -> Any:
    """Return zeros of shape ``x_shape`` with ``grad`` on the diagonal."""
    rows, columns = x_shape[-2:]
    before = min(max(0, -offset), rows)
    rest = list(grad.shape)
    parts = [grad]
    for place, count in ((0, before), (2, rows - before - grad.shape[-1])):
        rest[-1] = count
        parts.insert(place, xp.zeros(rest, dtype=grad.dtype, device=grad.device))
    return masked(
        _diagonal_mask(rows, columns, offset, grad),
        xp.expand_dims(xp.concat(parts, axis=-1), axis=-1),
    )


def _diagonal_mask(rows: int, columns: int, offset: int, like: Any) -> Any:
    farthest = max(rows, columns)  # diagonals beyond are empty
    k = max(-farthest, min(offset, farthest))
    return xp.eye(rows, columns, k=k, dtype=xp.bool, device=like.device)


def _trace(grad: Any, x_shape: Any, offset: int) -> Any:
    rows, columns = x_shape[-2:]
    return masked(_diagonal_mask(rows, columns, offset, grad), each_matrix(grad))


_PINV: Formulas = {"x": _pinv, RESULT: _pinv_forward}

_LINALG: dict[str, Formulas] = {
    "linalg_det": {"x": _det, RESULT: Forward.REDUCTION},
    "linalg_diagonal": {"x": _diagonal},
    "linalg_inv": {"x": _inv, RESULT: Forward.MATRIX_FUNCTION},
    "linalg_matrix_power": {"x": _matrix_power, RESULT: Forward.MATRIX_FUNCTION},
    "linalg_pinv": _PINV,
    "linalg_pinv.Tensor": _PINV,
    "linalg_slogdet": {"x": _slogdet, RESULT: _slogdet_forward},
    "linalg_solve": {"x1": _solve_matrix, "x2": _solve_right, RESULT: _solve_forward},
    "linalg_trace": {"x": _trace},
    "matrix_transpose": {"x": lambda grad: xp.matrix_transpose(grad)},
}
LINALG = with_forward(Forward.LINEAR, _LINALG)
