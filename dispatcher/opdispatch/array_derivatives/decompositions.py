"""Derivatives of decompositions of matrices.

Those with respect to eigenvectors and singular vectors exist where the values differ from each
other, and for what does not depend on the vectors' phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.array_derivatives.namespace import adjoint, masked, xp, zeros_like
from opdispatch.errors import AutogradError
from opdispatch.functionalities.derivative import Formulas


def _identity(matrices: Any) -> Any:
    """A mask of the diagonal."""
    return xp.eye(matrices.shape[-1], dtype=xp.bool, device=matrices.device)


def _right(x: Any) -> Any:
    """One number for each column."""
    return xp.expand_dims(x, axis=-2)


def _left(x: Any) -> Any:
    """One number for each row."""
    return xp.expand_dims(x, axis=-1)


def _differences(values: Any) -> Any:
    """Those of columns and rows, with ones on the diagonal."""
    differences = _right(values) - _left(values)
    return xp.where(_identity(differences), 1.0, differences)


def _cholesky(grad: Any, result: Any, upper: bool) -> Any:
    lower, grad = (adjoint(result), adjoint(grad)) if upper else (result, grad)
    product = xp.matmul(adjoint(lower), grad)
    half = (xp.tril(product) + xp.tril(product, k=-1)) / 2
    inner = (half + adjoint(half)) / 2
    back = xp.linalg.inv(lower)
    return xp.matmul(xp.matmul(adjoint(back), inner), back)


def _eigh(grads: Sequence[Any], results: Sequence[Any]) -> Any:
    of_values, of_vectors = grads
    values, vectors = results
    if of_vectors is None:
        return xp.matmul(vectors * _right(of_values), adjoint(vectors))
    inner = xp.matmul(adjoint(vectors), of_vectors) / _differences(values)
    diagonal = zeros_like(values) if of_values is None else of_values
    inner = xp.where(_identity(inner), _right(diagonal), inner)
    return xp.matmul(xp.matmul(vectors, inner), adjoint(vectors))


def _eig(grads: Sequence[Any], x: Any, results: Sequence[Any]) -> Any:
    """Also of a real matrix: its eigenvalues and eigenvectors are complex."""
    of_values, of_vectors = grads
    values, vectors = results
    back = adjoint(vectors)
    inner = zeros_like(vectors)
    if of_vectors is not None:
        along = xp.matmul(back, of_vectors)
        # Vectors have the length 1: what would change it does not count.
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


def _qr(grads: Sequence[Any], x_shape: Any, mode: str, results: Sequence[Any]) -> Any:
    rows, columns = x_shape[-2:]
    if rows < columns or (mode == "complete" and rows != columns):
        raise AutogradError(
            f"linalg_qr of matrices of {rows} rows and {columns} columns has no derivative with "
            f"mode={mode!r}; it has one with 'reduced' and as many rows as columns, or more"
        )
    of_q, of_r = grads
    q, r = results
    inner = -xp.matmul(adjoint(q), of_q) if of_r is None else xp.matmul(of_r, adjoint(r))
    if of_r is not None and of_q is not None:
        inner = inner - xp.matmul(adjoint(q), of_q)
    inner = xp.triu(inner)
    both = inner + adjoint(inner)
    whole = xp.matmul(q, xp.where(_identity(both), both / 2, both))
    if of_q is not None:
        whole = whole + of_q
    return adjoint(xp.linalg.solve(r, adjoint(whole)))


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
            # Above, only what is off the diagonal was divided by the right numbers.
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


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _svdvals(grad: Any, x: Any) -> Any:
    u, _, vh = xp.linalg.svd(x, full_matrices=False)
    return xp.matmul(u * _right(grad), vh)


DECOMPOSITIONS: dict[str, Formulas] = {
    "linalg_cholesky": {"x": _cholesky},
    "linalg_eig": {"x": _eig},
    "linalg_eigh": {"x": _eigh},
    "linalg_eigvals": {"x": _eigvals},
    "linalg_eigvalsh": {"x": _eigvalsh},
    "linalg_qr": {"x": _qr},
    "linalg_svd": {"x": _svd},
    "linalg_svdvals": {"x": _svdvals},
}
