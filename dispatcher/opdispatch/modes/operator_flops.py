"""FLOP formulas of the operators of the library ``array``.

A formula is called with the operator's arguments, tensors replaced by their shapes, and
``out_shape``, the shape of the result or the shapes of several results. An addition, a
multiplication and a function such as ``exp`` count as one operation each. Factorizations count only
the highest-order terms, for real numbers: see LAPACK Working Note 41, appendix C, and Golub and Van
Loan, Matrix Computations, table 8.6.1. Fourier transforms count as 5 N log2 N, and half of that for
real input, as in FFTW's benchmarks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
FlopFormula = Callable[..., int]


def _each_of_result(*_: Any, out_shape: Shape, **__: Any) -> int:
    return math.prod(out_shape)


def _each_of_first(times: int = 1) -> FlopFormula:
    return lambda x, *_, **__: times * math.prod(x)


def _matmul(x1: Shape, x2: Shape, *, out_shape: Shape) -> int:
    return 2 * math.prod(out_shape) * x1[-1]


def _tensordot(x1: Shape, x2: Shape, *, out_shape: Shape, **_: Any) -> int:
    # Each contracted extent is in both shapes, and each other one is in the result's.
    kept = math.prod(out_shape)
    return 2 * kept * math.isqrt(math.prod(x1) * math.prod(x2) // kept) if kept else 0


def _vecdot(x1: Shape, x2: Shape, *, out_shape: Shape, axis: int = -1) -> int:
    return 2 * math.prod(out_shape) * x1[axis]


def _cross(*_: Any, out_shape: Shape, **__: Any) -> int:
    return 3 * math.prod(out_shape)  # two products and a difference


def _of_matrices(count: Callable[[int, int], float]) -> FlopFormula:
    """Return a formula that sums ``count(larger extent, smaller extent)`` over stacked matrices."""

    def formula(x: Shape, *_: Any, **__: Any) -> int:
        large, small = max(x[-2:]), min(x[-2:])
        return math.prod(x[:-2]) * round(count(large, small))

    return formula


def _solve(x1: Shape, x2: Shape, *, out_shape: Shape) -> int:
    n = x1[-1]
    columns = math.prod(out_shape) // n if n else 0
    factorizations = math.prod(x1[:-2])
    return factorizations * round(2 * n**3 / 3) + 2 * n * n * columns


def _matrix_power(x: Shape, n: int, *, out_shape: Shape) -> int:
    times = abs(n)
    products = max(times.bit_length() - 1 + times.bit_count() - 1, 0)
    inverse = 2 * x[-1] ** 3 if n < 0 else 0
    return math.prod(x[:-2]) * (products * 2 * x[-1] ** 3 + inverse)


def _qr(x: Shape, *, mode: str = "reduced", out_shape: Any) -> int:
    large, small = max(x[-2:]), min(x[-2:])
    # The Householder reflections; applying them costs the same again.
    half = 2 * large * small**2 - 2 * small**3 / 3
    return math.prod(x[:-2]) * round(2 * half)


def _svd(x: Shape, *, full_matrices: bool = True, out_shape: Any) -> int:
    large, small = max(x[-2:]), min(x[-2:])
    if full_matrices:
        each = 4 * large**2 * small + 8 * large * small**2 + 9 * small**3
    else:
        each = 14 * large * small**2 + 8 * small**3
    return math.prod(x[:-2]) * each


def _transform(factor: float, is_of_result: bool) -> FlopFormula:
    """Return the formula of a transform along one axis.

    Its length is that of the result if ``is_of_result``, and otherwise that of the input.
    """

    def formula(
        x: Shape, *, n: int | None = None, axis: int = -1, out_shape: Shape, **_: Any
    ) -> int:
        length = out_shape[axis] if is_of_result else (x[axis] if n is None else n)
        lines = math.prod(out_shape) // out_shape[axis] if out_shape[axis] else 0
        return round(factor * lines * length * math.log2(length)) if length else 0

    return formula


def _n_transform(factor: float, is_of_result: bool) -> FlopFormula:
    """Return the formula of a transform along several axes."""

    def formula(
        x: Shape,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        out_shape: Shape,
        **_: Any,
    ) -> int:
        if axes is None:
            axes = range(-len(x if s is None else s), 0)
        given = [x[axis] for axis in axes] if s is None else list(s)
        lengths = [out_shape[axis] for axis in axes] if is_of_result else given
        total = math.prod(lengths)
        results = math.prod(out_shape[axis] for axis in axes)
        stacks = math.prod(out_shape) // results if results else 0
        return round(factor * stacks * total * math.log2(total)) if total else 0

    return formula


_ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh ceil clip copysign cos cosh divide exp expm1 floor
floor_divide hypot log log10 log1p log2 logaddexp maximum minimum multiply negative pow reciprocal
remainder round sign sin sinh sqrt square subtract tan tanh trunc diff
"""
_REDUCTIONS = "cumulative_prod cumulative_sum max mean min prod sum"

_EXTENT_CUBED: dict[str, Callable[[int, int], float]] = {
    "cholesky": lambda n, _: n**3 / 3,
    "det": lambda n, _: 2 * n**3 / 3,
    "eigh": lambda n, _: 9 * n**3,
    "eigvalsh": lambda n, _: 4 * n**3 / 3,
    "inv": lambda n, _: 2 * n**3,
    "matrix_rank": lambda m, n: 4 * m * n**2 - 4 * n**3 / 3,
    "pinv": lambda m, n: 16 * m * n**2 + 8 * n**3,
    "slogdet": lambda n, _: 2 * n**3 / 3,
    "svdvals": lambda m, n: 4 * m * n**2 - 4 * n**3 / 3,
    "trace": lambda _, n: n,
}

ARRAY_FLOPS: dict[str, FlopFormula] = {
    **{f"array::{name}": _each_of_result for name in _ELEMENTWISE.split()},
    **{f"array::{name}": _each_of_first() for name in _REDUCTIONS.split()},
    "array::std": _each_of_first(4),
    "array::var": _each_of_first(4),  # a sum, differences, squares, and their sum
    "array::matmul": _matmul,
    "array::tensordot": _tensordot,
    "array::vecdot": _vecdot,
    "array::linalg_cross": _cross,
    "array::linalg_matrix_norm": _each_of_first(2),
    "array::linalg_matrix_power": _matrix_power,
    "array::linalg_outer": _each_of_result,
    "array::linalg_qr": _qr,
    "array::linalg_solve": _solve,
    "array::linalg_svd": _svd,
    "array::linalg_vector_norm": _each_of_first(2),
    **{f"array::linalg_{name}": _of_matrices(count) for name, count in _EXTENT_CUBED.items()},
    **{f"array::fft_{name}": _transform(5, True) for name in ("fft", "ifft")},
    **{f"array::fft_{name}": _transform(2.5, False) for name in ("rfft", "ihfft")},
    **{f"array::fft_{name}": _transform(2.5, True) for name in ("irfft", "hfft")},
    **{f"array::fft_{name}": _n_transform(5, True) for name in ("fftn", "ifftn")},
    "array::fft_rfftn": _n_transform(2.5, False),
    "array::fft_irfftn": _n_transform(2.5, True),
}
"""Formulas by operator name, for all overloads. Operators that only move elements have none."""
