"""Functions that have the standard's results for infinities and zeros, where a library's differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

Kernel = Callable[..., Any]


def expm1(found: Kernel) -> Kernel:
    """NumPy's has NaN for infinite complex numbers, and of some zeros a real part of -0.0."""

    def adapted(x: Any) -> Any:
        result = found(x)
        if x.dtype.kind == "c":
            namespace = array_namespace(x)
            is_finite = namespace.isfinite(result)
            if not is_finite.all():
                result = namespace.where(is_finite, result, namespace.exp(x) - 1)
            # To subtract this turns a real part of -0.0 to 0.0, and leaves imaginary parts.
            result = namespace.where(x == 0, result - complex(-0.0, 0.0), result)
        return result

    return adapted


def floor_divide(found: Kernel) -> Kernel:
    """NumPy's has Python's results for infinities, where the standard prefers floor(x1 / x2)."""

    def adapted(x1: Any, x2: Any) -> Any:
        result = found(x1, x2)
        if result.dtype.kind != "f":
            return result
        namespace = array_namespace(result)
        is_infinite = _is_infinite(namespace, x1) | _is_infinite(namespace, x2)
        if is_infinite is False or not is_infinite.any():
            return result
        return namespace.where(is_infinite, namespace.floor(x1 / x2), result)

    return adapted


def _is_infinite(namespace: Any, x: Any) -> Any:
    return namespace.isinf(x) if hasattr(x, "dtype") else isinstance(x, float) and math.isinf(x)
