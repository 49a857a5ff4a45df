"""Functions that have the standard's results for infinities and zeros, where a library's differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from opdispatch.native.array.operators.functions import Kernel


def expm1(found: Kernel) -> Kernel:
    """Adapt ``expm1``.

    NumPy's has NaN for infinite complex numbers, and -0.0 as real part for some zeros.
    """

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
    """Adapt ``floor_divide``: NumPy's follows Python for infinities, the standard floor(x1 / x2).

    On the host one looks whether there are any; on a GPU, that would be to wait for it.
    """

    def adapted(x1: Any, x2: Any) -> Any:
        result = found(x1, x2)
        if result.dtype.kind != "f":
            return result
        is_on_host = isinstance(result, np.ndarray | np.generic)
        if is_on_host and not (_has_infinity(x1) or _has_infinity(x2)):
            return result
        namespace = np if is_on_host else array_namespace(result)
        is_infinite = _is_infinite(namespace, x1) | _is_infinite(namespace, x2)
        return namespace.where(is_infinite, namespace.floor(x1 / x2), result)

    return adapted


def _has_infinity(x: Any) -> bool:
    # Less than half of what ``any`` of few elements takes.
    return bool(np.count_nonzero(np.isinf(x))) if hasattr(x, "dtype") else math.isinf(x)


def _is_infinite(namespace: Any, x: Any) -> Any:
    return namespace.isinf(x) if hasattr(x, "dtype") else math.isinf(x)
