"""Derivatives of elementwise operators."""

from __future__ import annotations

import cmath
import math
from typing import Any

from opdispatch.functionalities.derivative import RESULT, Formula, Formulas, Forward
from opdispatch.native.array.derivatives.namespace import (
    as_complex,
    conj,
    direction,
    masked,
    with_forward,
    xp,
    zeros_like,
)


def _sign(grad: Any, x: Any, result: Any) -> Any:
    """Return the gradient of ``sign``: 0 for reals; of complex numbers, along the unit circle."""
    if x.dtype.kind != "c":
        return zeros_like(grad)
    size = xp.abs(x)
    # Compute the tangential part itself: subtracting the radial part would leave its rounding
    # error, divided by the size.
    across = as_complex(xp.imag(grad * xp.conj(result))) * 1j * result
    return masked(size != 0, across / xp.where(size == 0, 1.0, size))


def _sign_forward(x_t: Any, x: Any, result: Any) -> Any:
    return _sign(x_t, x, result) if x.dtype.kind == "c" else None


def _abs_forward(x_t: Any, x: Any) -> Any:
    along = conj(direction(x)) * x_t
    return xp.real(along) if x.dtype.kind == "c" else along


def _asin(grad: Any, x: Any) -> Any:
    # The factor depends on x alone, as in PyTorch: infinite at 1, where a zero gradient gives NaN.
    return grad * conj(xp.reciprocal(xp.sqrt(1 - x * x)))


def _acosh(grad: Any, x: Any) -> Any:
    if x.dtype.kind != "c":
        return grad * xp.reciprocal(xp.sqrt(x * x - 1))
    return grad / conj(xp.sqrt(x - 1)) / conj(xp.sqrt(x + 1))  # separately, as one may be 0


_CONSTANT: Formulas = {"x": zeros_like, RESULT: Forward.CONSTANT}
_UNARY: dict[str, Formulas] = {
    "abs": {"x": lambda grad, x: grad * direction(x), RESULT: _abs_forward},
    "acos": {"x": lambda grad, x: -_asin(grad, x)},
    "acosh": {"x": _acosh},
    "asin": {"x": _asin},
    "asinh": {"x": lambda grad, x: grad / conj(xp.sqrt(x * x + 1))},
    "atan": {"x": lambda grad, x: grad / conj(x * x + 1)},
    "atanh": {"x": lambda grad, x: grad / conj(1 - x * x)},
    "ceil": _CONSTANT,
    "conj": {"x": lambda grad: conj(grad), RESULT: Forward.LINEAR},
    "cos": {"x": lambda grad, x: -grad * conj(xp.sin(x))},
    "cosh": {"x": lambda grad, x: grad * conj(xp.sinh(x))},
    "exp": {"x": lambda grad, result: grad * conj(result)},
    "expm1": {"x": lambda grad, result: grad * conj(result + 1)},
    "floor": _CONSTANT,
    "imag": {"x": lambda grad: as_complex(grad) * 1j, RESULT: Forward.LINEAR},
    "log": {"x": lambda grad, x: grad / conj(x)},
    "log10": {"x": lambda grad, x: grad / (conj(x) * math.log(10))},
    "log1p": {"x": lambda grad, x: grad / conj(x + 1)},
    "log2": {"x": lambda grad, x: grad / (conj(x) * math.log(2))},
    "negative": {"x": lambda grad: -grad},
    "positive": {"x": lambda grad: grad},
    "real": {"x": lambda grad: grad, RESULT: Forward.LINEAR},
    "reciprocal": {"x": lambda grad, result: -grad * conj(result * result)},
    "round": _CONSTANT,
    "sign": {"x": _sign, RESULT: _sign_forward},
    "sin": {"x": lambda grad, x: grad * conj(xp.cos(x))},
    "sinh": {"x": lambda grad, x: grad * conj(xp.cosh(x))},
    "sqrt": {"x": lambda grad, result: grad / (2 * conj(result))},
    "square": {"x": lambda grad, x: grad * (2 * conj(x))},
    "tan": {"x": lambda grad, result: grad * conj(1 + result * result)},
    "tanh": {"x": lambda grad, result: grad * conj(1 - result * result)},
    "trunc": _CONSTANT,
}
UNARY = with_forward(Forward.ELEMENTWISE, _UNARY)


def _conj(x: Any) -> Any:
    """Return the complex conjugate of a tensor or a number."""
    return x.conjugate() if isinstance(x, complex) else x if _is_number(x) else conj(x)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex)


def _log(x: Any) -> Any:
    """Return the logarithm of a tensor or a number; -inf at 0 and NaN below, as NumPy does."""
    if not _is_number(x):
        return xp.log(x)
    if isinstance(x, complex):
        return cmath.log(x) if x else -math.inf
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _pow_base(grad: Any, x1: Any, x2: Any) -> Any:
    if _is_number(x2):
        return zeros_like(grad) if x2 == 0 else grad * conj(x2 * x1 ** (x2 - 1))
    moves = x2 != 0
    exponent = xp.where(moves, x2, 1.0)  # masked first: 1 / x1 may be infinite
    return masked(moves, grad * conj(exponent * x1 ** (exponent - 1)))


def _pow_exponent(grad: Any, x1: Any, x2: Any, result: Any) -> Any:
    if _is_number(x1) and x1 != 0:
        return grad * conj(result * _log(x1))
    # 0 ** x2 is constant in x2 if the real part of x2 is not negative.
    real = xp.real(x2) if x2.dtype.kind == "c" else x2
    if _is_number(x1):
        return grad * masked(real < 0, conj(result * _log(x1)))
    stays = xp.logical_and(x1 == 0, real >= 0)
    # Mask the argument of the logarithm as well: its value and derivatives are infinite at 0.
    slope = conj(result * xp.log(xp.where(stays, 1.0, x1)))
    return grad * masked(xp.logical_not(stays), slope)


def _larger(grad: Any, x1: Any, x2: Any) -> Any:
    """Return the gradient of ``maximum`` for its first argument.

    It is ``grad`` where ``x1 > x2``, ``grad / 2`` where they are equal, and 0 elsewhere. Where
    either is NaN, both arguments get ``grad``.
    """
    return masked(xp.logical_not(x1 < x2), xp.where(x1 == x2, grad / 2, grad))


def _smaller(grad: Any, x1: Any, x2: Any) -> Any:
    return masked(xp.logical_not(x1 > x2), xp.where(x1 == x2, grad / 2, grad))


def _atan2(product: Any, x1: Any, x2: Any) -> Any:
    """Return ``product / (x1**2 + x2**2)``, and 0 at the origin."""
    square = x1 * x1 + x2 * x2
    return masked(square != 0, product / xp.where(square == 0, 1.0, square))


def _copysign(grad: Any, x1: Any, result: Any) -> Any:
    return grad * (direction(x1) * direction(result))


def _floor_divided(x1: Any, x2: Any) -> Any:
    """Return the integer n with ``remainder(x1, x2) == x1 - n * x2``.

    Unlike the standard's ``floor_divide``, n is -1 where ``x2`` is infinite and the signs differ,
    and NaN where ``x1`` is infinite.
    """
    infinite = (x2 == math.inf) | (x2 == -math.inf)
    differ = ((x1 < 0) != (x2 < 0)) & (x1 != 0)
    times = xp.where(infinite & differ, -1.0, xp.floor_divide(x1, x2))
    return xp.where(((x1 == math.inf) | (x1 == -math.inf)) & (x2 != 0), math.nan, times)


def _exchanged(formula: Formula) -> Formula:
    """Return the formula of a symmetric operator's second argument, from that of its first."""
    return lambda grad, x1, x2: formula(grad, x2, x1)


_OF_BOTH: dict[str, tuple[Formula, Formula]] = {
    "add": (lambda grad: grad, lambda grad: grad),
    "atan2": (
        lambda grad, x1, x2: _atan2(grad * x2, x1, x2),
        lambda grad, x1, x2: _atan2(-grad * x1, x1, x2),
    ),
    "copysign": (_copysign, zeros_like),
    "divide": (
        lambda grad, x2: grad / _conj(x2),
        lambda grad, x1, x2: -grad * conj((x1 / x2) / x2),
    ),
    "floor_divide": (zeros_like, zeros_like),
    "hypot": (
        lambda grad, x1, result: grad * (x1 / result),
        lambda grad, x2, result: grad * (x2 / result),
    ),
    "logaddexp": (
        lambda grad, x1, x2: grad / (1 + xp.exp(x2 - x1)),
        lambda grad, x1, x2: grad / (1 + xp.exp(x1 - x2)),
    ),
    "maximum": (_larger, _exchanged(_larger)),
    "minimum": (_smaller, _exchanged(_smaller)),
    "multiply": (
        lambda grad, x2: grad * _conj(x2),
        lambda grad, x1: grad * _conj(x1),
    ),
    "pow": (_pow_base, _pow_exponent),
    "remainder": (
        lambda grad: grad,
        lambda grad, x1, x2: -grad * _floor_divided(x1, x2),
    ),
    "subtract": (lambda grad: grad, lambda grad: -grad),
}


def _maximum_forward(x1_t: Any, x2_t: Any, x1: Any, x2: Any) -> Any:
    """Return the tangent of ``maximum``; where either is NaN, ``x2_t``, as PyTorch does."""
    return _chosen(x1_t, x2_t, x1 > x2, x1 == x2)


def _minimum_forward(x1_t: Any, x2_t: Any, x1: Any, x2: Any) -> Any:
    return _chosen(x1_t, x2_t, x1 < x2, x1 == x2)


def _chosen(x1_t: Any, x2_t: Any, first: Any, both: Any) -> Any:
    parts = []
    if x1_t is not None:
        parts.append(masked(first | both, xp.where(both, x1_t / 2, x1_t)))
    if x2_t is not None:
        parts.append(xp.where(first, 0.0, xp.where(both, x2_t / 2, x2_t)))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _copysign_forward(x1_t: Any, x1: Any, result: Any) -> Any:
    return None if x1_t is None else _copysign(x1_t, x1, result)


def _divide_forward(x1_t: Any, x2_t: Any, x2: Any, result: Any) -> Any:
    """Return the tangent of ``divide``, dividing last so that intermediates do not overflow."""
    if x2_t is None:
        return x1_t / x2
    moved = x2_t * result
    return (-moved if x1_t is None else x1_t - moved) / x2


_FORWARD: dict[str, Any] = {
    "copysign": _copysign_forward,
    "divide": _divide_forward,
    "floor_divide": Forward.CONSTANT,
    "maximum": _maximum_forward,
    "minimum": _minimum_forward,
    "multiply": Forward.MULTILINEAR,
}

BINARY: dict[str, Formulas] = {
    f"{name}.{overload}": {RESULT: _FORWARD.get(name, Forward.ELEMENTWISE), **formulas}
    for name, (first, second) in _OF_BOTH.items()
    for overload, formulas in (
        ("Tensor", {"x1": first, "x2": second}),
        ("Scalar", {"x1": first}),
        ("ScalarFirst", {"x2": second}),
    )
}


def _clip(grad: Any, x: Any, min: Any, max: Any) -> Any:
    if min is not None:
        grad = masked(x >= min, grad)
    return grad if max is None else masked(x <= max, grad)


def _clip_forward(x_t: Any, min_t: Any, max_t: Any, x: Any, min: Any, max: Any, result: Any) -> Any:
    """Return the tangent of the active bound, or ``x_t`` within bounds and for NaN bounds."""
    moved = xp.zeros_like(result) if x_t is None else x_t
    if max is not None:
        moved = xp.where(x > max, 0.0 if max_t is None else max_t, moved)
    if min is not None:
        moved = xp.where(x < min, 0.0 if min_t is None else min_t, moved)
    if min is None or max is None:
        return moved
    return xp.where(min > max, 0.0 if max_t is None else max_t, moved)


def _clip_min(grad: Any, x: Any, min: Any, max: Any) -> Any:
    counts = x < min
    return masked(counts if max is None else xp.logical_and(counts, min < max), grad)


def _clip_max(grad: Any, x: Any, min: Any, max: Any) -> Any:
    counts = x > max
    return masked(counts if min is None else xp.logical_or(counts, max < min), grad)


def _first(grad: Any, condition: Any) -> Any:
    return masked(condition, grad)


def _second(grad: Any, condition: Any) -> Any:
    return xp.where(condition, 0.0, grad)


_CHOICES: dict[str, Formulas] = {
    "clip": {"x": _clip},
    "clip.ScalarMax": {"x": _clip, "min": _clip_min, RESULT: _clip_forward},
    "clip.ScalarMin": {"x": _clip, "max": _clip_max, RESULT: _clip_forward},
    "clip.Tensor": {"x": _clip, "min": _clip_min, "max": _clip_max, RESULT: _clip_forward},
    "where": {"x1": _first, "x2": _second},
    "where.ScalarOther": {"x1": _first},
    "where.ScalarSelf": {"x2": _second},
}
CHOICES = with_forward(Forward.ELEMENTWISE, _CHOICES)
