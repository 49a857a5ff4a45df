"""CuPy's functions for operators, adapted where they deviate from the standard.

The deviations are those of CuPy 14.2, found by calling NumPy and CuPy with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat.numpy
import numpy as np
from array_api_compat import array_namespace

from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.library_functions import find_unchecked
from opdispatch.native.array.operators.meta_shapes import as_tuple, refusal, show
from opdispatch.native.array.operators.preconditions import with_precondition

Adapt = Callable[[Kernel, Kernel], Kernel]

_FLOAT16 = np.dtype(np.float16)


def find_cupy_function(namespace: Any, function: ArrayFunction) -> Kernel:
    """Return an operator's function from ``array_api_compat.cupy``, adapted if it deviates."""
    found = find_unchecked(namespace, function)
    adapt = _ADAPTED.get(function.operator)
    if adapt is not None:
        found = adapt(found, find_unchecked(array_api_compat.numpy, function))
    return with_precondition(function.operator, found)


def _cumulative(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt a cumulative function: CuPy's rejects a 0-d array, which NumPy treats as 1-d."""
    return lambda x, **options: found(_of_a_dimension(x), **options)


def _meshgrid(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``meshgrid`` as ``_cumulative`` does."""
    return lambda arrays, **options: found([_of_a_dimension(x) for x in arrays], **options)


def _of_a_dimension(x: Any) -> Any:
    return x if x.ndim else x.reshape(1)


def _broadcast_to(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``broadcast_to``: CuPy's does not reject negative extents."""

    def broadcast_to(x: Any, shape: Any) -> Any:
        if min(as_tuple(shape), default=0) < 0:
            reason = f"of {show(x.shape, as_tuple(shape))}: extents must be non-negative"
            raise refusal("broadcast_to", reason)
        return found(x, shape)

    return broadcast_to


def _norm(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt a norm: CuPy's raises for empty arrays, and accumulates float16 in float16 (CUB).

    For an empty array NumPy computes the result, or raises the error, from a host array.
    """

    def norm(x: Any, **options: Any) -> Any:
        if x.size and x.dtype == _FLOAT16:
            return found(x.astype(np.float32), **options).astype(_FLOAT16)
        if x.size:
            return found(x, **options)
        return array_namespace(x).asarray(of_numpy(np.empty(x.shape, x.dtype), **options))

    return norm


def _permute_dims(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``permute_dims``: CuPy's reverses the dimensions when ``axes`` is empty."""

    def permute_dims(x: Any, axes: Any) -> Any:
        if len(axes) != x.ndim:
            reason = f"was given {len(axes)} axes for the shape {show(x.shape)}"
            raise refusal("permute_dims", reason)
        return found(x, axes)

    return permute_dims


def _in_float32(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt a sum: CuPy's accumulates float16 in float16 (CUB) unless another dtype is given."""

    def add_up(x: Any, *, dtype: Any = None, **options: Any) -> Any:
        if x.dtype != _FLOAT16 or (dtype is not None and dtype != _FLOAT16):
            return found(x, dtype=dtype, **options)
        return found(x, dtype=np.dtype(np.float32), **options).astype(_FLOAT16)

    return add_up


def _eigenvalues(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt eigenvalues: CuPy's have a real dtype for an empty stack of matrices."""

    def of_matrices(x: Any) -> Any:
        results = found(x)
        if x.size:
            return results
        dtype = np.result_type(x.dtype, np.complex64)
        if not isinstance(results, tuple):
            return results.astype(dtype)
        return tuple(each.astype(dtype) for each in results)

    return of_matrices


def _searchsorted(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``searchsorted``: CuPy's compares as C++ does, where -1 > 1u."""

    def searchsorted(x1: Any, x2: Any, **options: Any) -> Any:
        if not hasattr(x2, "dtype"):
            x2 = array_namespace(x1).asarray(x2)
        if x1.dtype != x2.dtype:
            common = np.result_type(x1.dtype, x2.dtype)
            x1, x2 = x1.astype(common), x2.astype(common)
        return found(x1, x2, **options)

    return searchsorted


def _solve(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``solve``: CuPy's does not broadcast batch dimensions, and rejects empty batches."""

    def solve(x1: Any, x2: Any) -> Any:
        if x2.ndim > 1:
            namespace = array_namespace(x1)
            if x1.shape[:-2] != x2.shape[:-2]:
                batch = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
                x1, x2 = (namespace.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, x2))
            if not x2.size and x1.shape[-2:] == (x2.shape[-2], x2.shape[-2]):
                return namespace.empty(x2.shape, dtype=np.result_type(x1.dtype, x2.dtype))
        return found(x1, x2)

    return solve


def _tensordot(found: Kernel, of_numpy: Kernel) -> Kernel:
    """Adapt ``tensordot``: CuPy's accepts only an integer ``axes`` for 0-d arrays."""

    def tensordot(x1: Any, x2: Any, **options: Any) -> Any:
        return found(x1, x2, **options) if x1.ndim and x2.ndim else x1 * x2

    return tensordot


_ADAPTED: dict[str, Adapt] = {
    "broadcast_to": _broadcast_to,
    "linalg_solve": _solve,
    "meshgrid": _meshgrid,
    "permute_dims": _permute_dims,
    "prod": _in_float32,
    "sum": _in_float32,
    **dict.fromkeys(("linalg_eig", "linalg_eigvals"), _eigenvalues),
    **dict.fromkeys(("searchsorted", "searchsorted.Scalar"), _searchsorted),
    **dict.fromkeys(("cumulative_prod", "cumulative_sum"), _cumulative),
    **dict.fromkeys(("tensordot", "tensordot.dims"), _tensordot),
    **dict.fromkeys(("linalg_matrix_norm", "linalg_matrix_norm.ord", "linalg_vector_norm"), _norm),
}
