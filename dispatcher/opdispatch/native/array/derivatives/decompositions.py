"""Derivatives of matrix decompositions.

Gradients through eigenvectors and singular vectors are defined only if the eigenvalues or singular
values are distinct, and if the loss does not depend on the phases of the vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opdispatch.errors import AutogradError
from opdispatch.functionalities.derivative import RESULT, Formulas
from opdispatch.native.array.derivatives.manipulation import part_of
from opdispatch.native.array.derivatives.namespace import (
    adjoint,
    as_complex,
    masked,
    xp,
    zeros_like,
)


def _identity(matrices: Any) -> Any:
    """Return a boolean (n, n) mask of the diagonal, for matrices of shape (..., n, n)."""
    return xp.eye(matrices.shape[-1], dtype=xp.bool, device=matrices.device)


def _right(x: Any) -> Any:
    """Return ``x``, of shape (..., n), with shape (..., 1, n), to scale columns."""
    return xp.expand_dims(x, axis=-2)


def _left(x: Any) -> Any:
    """Return ``x``, of shape (..., n), with shape (..., n, 1), to scale rows."""
    return xp.expand_dims(x, axis=-1)


def _differences(values: Any) -> Any:
    """Return ``values[j] - values[i]`` at (i, j), with ones on the diagonal."""
    differences = _right(values) - _left(values)
    return xp.where(_identity(differences), 1.0, differences)


def _hermitian(x: Any) -> Any:
    """Return the hermitian part of ``x``, on which ``eigh`` and ``cholesky`` depend."""
    return (x + adjoint(x)) / 2


def _diagonal(x: Any) -> Any:
    return xp.linalg.diagonal(x)


def _real(x: Any) -> Any:
    return xp.real(x) if x.dtype.kind == "c" else x


def _off_diagonal(x: Any, differences: Any) -> Any:
    """Return ``x / differences`` with the diagonal of ``x`` set to 0 first."""
    return masked(~_identity(x), x) / differences


def _cholesky(grad: Any, result: Any, upper: bool) -> Any:
    lower, grad = (adjoint(result), adjoint(grad)) if upper else (result, grad)
    inner = _hermitian(_half_of_lower(xp.matmul(adjoint(lower), grad)))
    back = xp.linalg.inv(lower)
    return xp.matmul(xp.matmul(adjoint(back), inner), back)


def _half_of_lower(x: Any) -> Any:
    """Return the lower triangle of ``x``, with its diagonal halved."""
    return (xp.tril(x) + xp.tril(x, k=-1)) / 2


def _cholesky_forward(x_t: Any, result: Any, upper: bool) -> Any:
    lower = adjoint(result) if upper else result
    back = xp.linalg.inv(lower)
    inner = xp.matmul(xp.matmul(back, _hermitian(x_t)), adjoint(back))
    moved = xp.matmul(lower, _half_of_lower(inner))
    return adjoint(moved) if upper else moved


def _eigh(grads: Sequence[Any], results: Sequence[Any]) -> Any:
    of_values, of_vectors = grads
    values, vectors = results
    if of_vectors is None:
        return xp.matmul(vectors * _right(of_values), adjoint(vectors))
    # Only the skew part acts: eigenvectors stay orthonormal. For nearly equal eigenvalues it is
    # small as well, if the loss depends on their subspace alone, so that the quotient stays finite.
    turned = _skew(xp.matmul(adjoint(vectors), of_vectors)) / 2
    inner = turned / _differences(values)
    diagonal = zeros_like(values) if of_values is None else of_values
    inner = xp.where(_identity(inner), _right(diagonal), inner)
    return xp.matmul(xp.matmul(vectors, inner), adjoint(vectors))


def _in_basis(x: Any, vectors: Any) -> Any:
    return xp.matmul(xp.matmul(adjoint(vectors), x), vectors)


def _eigh_forward(x_t: Any, results: Sequence[Any]) -> Any:
    values, vectors = results
    inner = _in_basis(_hermitian(x_t), vectors)
    turned = _off_diagonal(inner, _differences(values))
    return _real(_diagonal(inner)), xp.matmul(vectors, turned)


def _eigvalsh_forward(x_t: Any, x: Any) -> Any:
    return _real(_diagonal(_in_basis(_hermitian(x_t), xp.linalg.eigh(x).eigenvectors)))


def _eig_forward(x_t: Any, results: Sequence[Any]) -> Any:
    values, vectors = results
    inner = xp.linalg.solve(vectors, xp.matmul(as_complex(x_t), vectors))
    moved = xp.matmul(vectors, _off_diagonal(inner, _differences(values)))
    # Project out the change of length: eigenvectors are normalized.
    longer = xp.real(_diagonal(xp.matmul(adjoint(vectors), moved)))
    return _diagonal(inner), moved - vectors * _right(longer)


def _eigvals_forward(x_t: Any, x: Any) -> Any:
    vectors = xp.linalg.eig(x).eigenvectors
    return _diagonal(xp.linalg.solve(vectors, xp.matmul(as_complex(x_t), vectors)))


def _eig(grads: Sequence[Any], x: Any, results: Sequence[Any]) -> Any:
    """Return the gradient of ``eig``, whose results are complex even for a real matrix."""
    of_values, of_vectors = grads
    values, vectors = results
    back = adjoint(vectors)
    inner = zeros_like(vectors)
    if of_vectors is not None:
        along = xp.matmul(back, of_vectors)
        # Project out the change of length: eigenvectors are normalized.
        kept = _right(xp.real(xp.linalg.diagonal(along)))
        inner = (along - xp.matmul(back, vectors * kept)) / _differences(xp.conj(values))
    diagonal = zeros_like(values) if of_values is None else of_values
    inner = xp.where(_identity(inner), _right(diagonal), inner)
    grad = xp.linalg.solve(back, xp.matmul(inner, back))
    return grad if x.dtype.kind == "c" else xp.real(grad)


def _eigvals(grad: Any, x: Any) -> Any:
    return _eig((grad, None), x, xp.linalg.eig(x))


def _eigvalsh(grad: Any, x: Any) -> Any:
    vectors = xp.linalg.eigh(x).eigenvectors
    return xp.matmul(vectors * _right(grad), adjoint(vectors))


def _solve_or_nan(r: Any, right: Any) -> Any:
    """Return the solutions of upper triangular systems; NaN where ``r`` is singular."""
    singular = xp.any(_diagonal(r) == 0, axis=-1, keepdims=True)
    singular = xp.expand_dims(singular, axis=-1)
    regular = xp.where(singular, xp.eye(r.shape[-1], dtype=r.dtype, device=r.device), r)
    # Multiply by NaN instead of replacing, so that higher derivatives are NaN as well.
    found = xp.linalg.solve(regular, right)
    return found * xp.where(singular, math.nan, xp.ones_like(found))


def _check_qr(shape: Sequence[int], mode: str) -> None:
    rows, columns = shape[-2:]
    if mode == "complete" and rows > columns:
        raise AutogradError(
            f"linalg_qr of matrices of {rows} rows and {columns} columns has no derivative with "
            "mode='complete': columns beyond those of the matrix are not unique",
            hint="use mode='reduced'",
        )


def _qr(grads: Sequence[Any], x: Any, mode: str, results: Sequence[Any]) -> Any:
    _check_qr(x.shape, mode)
    rows, columns = x.shape[-2:]
    of_q, of_r = grads
    q, r = results
    if rows >= columns:
        return _qr_of_tall(of_q, of_r, q, r)
    # For a wide matrix, only its first square block determines Q; the other columns are Q @ R.
    if of_r is None:
        square = _qr_of_tall(of_q, None, q, part_of(r, -1, 0, rows))
        return xp.concat([square, zeros_like(part_of(x, -1, rows, columns))], axis=-1)
    of_rest = part_of(of_r, -1, rows, columns)
    turned = xp.matmul(part_of(x, -1, rows, columns), adjoint(of_rest))
    of_q = turned if of_q is None else of_q + turned
    square = _qr_of_tall(of_q, part_of(of_r, -1, 0, rows), q, part_of(r, -1, 0, rows))
    return xp.concat([square, xp.matmul(q, of_rest)], axis=-1)


def _qr_of_tall(of_q: Any, of_r: Any, q: Any, r: Any) -> Any:
    inner = -xp.matmul(adjoint(q), of_q) if of_r is None else xp.matmul(of_r, adjoint(r))
    if of_r is not None and of_q is not None:
        inner = inner - xp.matmul(adjoint(q), of_q)
    inner = xp.triu(inner)
    both = inner + adjoint(inner)
    whole = xp.matmul(q, xp.where(_identity(both), both / 2, both))
    if of_q is not None:
        whole = whole + of_q
    return adjoint(_solve_or_nan(r, adjoint(whole)))


def _qr_forward(x_t: Any, x: Any, mode: str, results: Sequence[Any]) -> Any:
    _check_qr(x.shape, mode)
    rows, columns = x.shape[-2:]
    q, r = results
    if rows >= columns:
        return _qr_forward_of_tall(x_t, q, r)
    q_t, r_t = _qr_forward_of_tall(part_of(x_t, -1, 0, rows), q, part_of(r, -1, 0, rows))
    rest, rest_t = part_of(x, -1, rows, columns), part_of(x_t, -1, rows, columns)
    rest_t = xp.matmul(adjoint(q_t), rest) + xp.matmul(adjoint(q), rest_t)
    return q_t, xp.concat([r_t, rest_t], axis=-1)


def _qr_forward_of_tall(x_t: Any, q: Any, r: Any) -> Any:
    # X_t R^-1, from the solution Y of R^H Y = X_t^H.
    along = adjoint(_solve_or_nan(adjoint(r), adjoint(x_t)))
    inner = xp.matmul(adjoint(q), along)
    below = xp.tril(inner, k=-1)
    turned = below - adjoint(below)
    if inner.dtype.kind == "c":  # the diagonal of R stays real
        phases = as_complex(xp.imag(_diagonal(inner))) * 1j
        turned = xp.where(_identity(inner), _right(phases), turned)
    q_t = xp.matmul(q, turned) + along - xp.matmul(q, inner)
    return q_t, xp.triu(xp.matmul(inner - turned, r))


def _svd(grads: Sequence[Any], x_shape: Any, full_matrices: bool, results: Sequence[Any]) -> Any:
    of_u, of_s, of_vh = grads
    u, s, vh = results
    rows, columns = x_shape[-2:]
    if full_matrices and rows != columns:
        if of_u is not None or of_vh is not None:
            raise AutogradError(
                "the singular vectors of linalg_svd with full_matrices=True have no derivative: "
                "those beyond the singular values are not unique",
                hint="use full_matrices=False",
            )
        count = min(rows, columns)
        u, vh = u[..., :count], vh[..., :count, :]
    if of_u is None and of_vh is None:
        return xp.matmul(u * _right(of_s), vh)
    squares = _differences(s * s)
    inner = zeros_like(xp.matmul(adjoint(u), u))
    if of_u is not None:
        turned = _skew(xp.matmul(adjoint(u), of_u))
        inner = inner + turned / squares * _right(s)
        if u.dtype.kind == "c":
            # The division above is right off the diagonal only.
            inner = xp.where(_identity(inner), turned / (2 * _right(s)), inner)
    if of_vh is not None:
        turned = masked(~_identity(inner), _skew(xp.matmul(vh, adjoint(of_vh))))
        inner = inner + _left(s) * turned / squares
    if of_s is not None:
        inner = inner + masked(_identity(inner), _right(of_s))
    if rows > columns and of_u is not None:
        outside = of_u / _right(s)
        outside = outside - xp.matmul(u, xp.matmul(adjoint(u), outside))
        return xp.matmul(xp.matmul(u, inner) + outside, vh)
    if columns > rows and of_vh is not None:
        outside = of_vh / _left(s)
        outside = outside - xp.matmul(xp.matmul(outside, adjoint(vh)), vh)
        return xp.matmul(u, xp.matmul(inner, vh) + outside)
    return xp.matmul(xp.matmul(u, inner), vh)


def _svd_forward(x_t: Any, full_matrices: bool, results: Sequence[Any]) -> Any:
    u, s, vh = results
    rows, columns = u.shape[-2], vh.shape[-1]
    if full_matrices and rows != columns:
        # Vectors beyond the singular values are not unique, so that all of them get no tangent.
        count = min(rows, columns)
        [_, s_t, _] = _svd_forward(x_t, False, (u[..., :count], s, vh[..., :count, :]))
        return xp.full_like(u, math.nan), s_t, xp.full_like(vh, math.nan)
    v = adjoint(vh)
    inner = xp.matmul(xp.matmul(adjoint(u), x_t), v)
    squares = _differences(s * s)
    back = adjoint(inner)
    u_turned = _off_diagonal(inner * _right(s) + _left(s) * back, squares)
    v_turned = _off_diagonal(_left(s) * inner + back * _right(s), squares)
    if inner.dtype.kind == "c":
        phases = as_complex(xp.imag(_diagonal(inner)) / s) * 1j
        u_turned = xp.where(_identity(inner), _right(phases), u_turned)
    u_t, v_t = xp.matmul(u, u_turned), xp.matmul(v, v_turned)
    if rows > columns:
        along = xp.matmul(x_t, v) / _right(s)
        u_t = u_t + along - xp.matmul(u, xp.matmul(adjoint(u), along))
    if columns > rows:
        along = xp.matmul(adjoint(x_t), u) / _right(s)
        v_t = v_t + along - xp.matmul(v, xp.matmul(vh, along))
    return u_t, _real(_diagonal(inner)), adjoint(v_t)


def _svdvals_forward(x_t: Any, x: Any) -> Any:
    u, _, vh = xp.linalg.svd(x, full_matrices=False)
    return _real(_diagonal(xp.matmul(xp.matmul(adjoint(u), x_t), adjoint(vh))))


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _svdvals(grad: Any, x: Any) -> Any:
    u, _, vh = xp.linalg.svd(x, full_matrices=False)
    return xp.matmul(u * _right(grad), vh)


DECOMPOSITIONS: dict[str, Formulas] = {
    "linalg_cholesky": {"x": _cholesky, RESULT: _cholesky_forward},
    "linalg_eig": {"x": _eig, RESULT: _eig_forward},
    "linalg_eigh": {"x": _eigh, RESULT: _eigh_forward},
    "linalg_eigvals": {"x": _eigvals, RESULT: _eigvals_forward},
    "linalg_eigvalsh": {"x": _eigvalsh, RESULT: _eigvalsh_forward},
    "linalg_qr": {"x": _qr, RESULT: _qr_forward},
    "linalg_svd": {"x": _svd, RESULT: _svd_forward},
    "linalg_svdvals": {"x": _svdvals, RESULT: _svdvals_forward},
}
