"""Functions of the standard's extensions ``linalg`` and ``fft``, adapted to their schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from opdispatch.native.array.operators.functions import Kernel
from opdispatch.native.array.operators.meta_shapes import show

_FARTHEST = 2**31 - 1
"""The largest ``offset`` of a diagonal that NumPy accepts."""


def _new(found: Kernel) -> Kernel:
    """Adapt a function that may return its argument: return a new array instead."""

    def new(x: Any, *args: Any, **options: Any) -> Any:
        result = found(x, *args, **options)
        return x.copy() if result is x else result

    return new


def _diagonal(found: Kernel) -> Kernel:
    """Adapt ``diagonal``: NumPy's view is read-only; PyTorch's and CuPy's are writable."""
    found = _beyond_matrix(found)

    def diagonal(x: Any, *, offset: int) -> Any:
        is_usual = type(x) is np.ndarray and -_FARTHEST <= offset <= _FARTHEST
        result = x.diagonal(offset, -2, -1) if is_usual else found(x, offset=offset)
        if isinstance(result, np.ndarray) and x.flags.writeable:
            result.flags.writeable = True
        return result

    return diagonal


def _beyond_matrix(found: Kernel) -> Kernel:
    """Adapt ``diagonal``: return an empty diagonal for offsets beyond what NumPy accepts."""

    def of_diagonal(x: Any, *, offset: int, **options: Any) -> Any:
        if not -_FARTHEST <= offset <= _FARTHEST:
            farthest = max(x.shape, default=0)
            offset = max(-farthest, min(offset, farthest))
        return found(x, offset=offset, **options)

    return of_diagonal


def _along_named_axes(found: Kernel) -> Kernel:
    """Adapt a transform with ``s`` but no axes, which NumPy requires: use the last ``len(s)``.

    Over no axes, a transform returns real numbers unchanged; convert them to complex.
    """

    def transform(x: Any, *, s: Any = None, axes: Any = None, **options: Any) -> Any:
        if axes is None and s is not None:
            axes = range(-len(s), 0)
        result = found(x, s=s, axes=axes, **options)
        if result is x and x.dtype.kind != "c":
            return x.astype(np.fft.fft(np.ones(1, x.dtype)).dtype)
        return result

    return _new(transform)


def _of_finite_elements(operator: str) -> Callable[[Kernel], Kernel]:
    """Adapt a decomposition to raise LinAlgError for infinities and NaN.

    For some matrices with an infinity, LAPACK's singular values never converge, and for others it
    returns a rank. ``eig`` raises by itself.
    """

    def adapt(found: Kernel) -> Kernel:
        def call(x: Any, **options: Any) -> Any:
            if isinstance(x, np.ndarray) and not np.isfinite(x).all():
                raise np.linalg.LinAlgError(
                    f"array::{operator} of {show(x.shape)}: there is an infinity or NaN among the "
                    "elements, and such matrices have no singular values"
                )
            return found(x, **options)

        return call

    return adapt


def _matrix_rank(found: Kernel) -> Kernel:
    """Adapt ``matrix_rank``: NumPy's fails on empty matrices, without a largest singular value."""
    found = _of_finite_elements("linalg_matrix_rank")(found)

    def matrix_rank(x: Any, **options: Any) -> Any:
        if len(x.shape) > 1 and 0 in x.shape[-2:]:
            x = array_namespace(x).zeros((*x.shape[:-2], 1, 1), dtype=x.dtype, device=x.device)
        return found(x, **options)

    return matrix_rank


def _to_real(found: Kernel) -> Kernel:
    """Adapt a transform to reals: NumPy returns uninitialized memory if there are no points."""

    def transform(x: Any, *, n: int | None = None, axis: int = -1, **options: Any) -> Any:
        if isinstance(x, np.ndarray) and x.shape[axis] == 0:
            x = _with_a_zero(x, axis)
        return found(x, n=n, axis=axis, **options)

    return transform


def _to_real_along_named_axes(found: Kernel) -> Kernel:
    """Adapt a transform to reals over several axes, like ``_to_real`` for the last one."""

    def transform(x: Any, *, s: Any = None, axes: Any = None, **options: Any) -> Any:
        last = -1 if axes is None else axes[-1]
        if isinstance(x, np.ndarray) and x.shape[last] == 0:
            x = _with_a_zero(x, last)
        return found(x, s=s, axes=axes, **options)

    return transform


def _with_a_zero(x: Any, axis: int) -> Any:
    """Return host zeros like ``x``, but with the extent 1 along ``axis``."""
    shape = list(x.shape)
    shape[axis] = 1
    return np.zeros(shape, x.dtype)


EXTENSION_ADAPTERS: Final[dict[str, Callable[[Kernel], Kernel]]] = {
    **{
        f"linalg_{name}": _of_finite_elements(f"linalg_{name.partition('.')[0]}")
        for name in ("pinv", "pinv.Tensor", "svd", "svdvals")
    },
    **dict.fromkeys(("linalg_matrix_rank", "linalg_matrix_rank.Tensor"), _matrix_rank),
    "linalg_diagonal": _diagonal,
    "linalg_trace": _beyond_matrix,
    "linalg_matrix_power": _new,
    **dict.fromkeys(("fft_fftn", "fft_ifftn", "fft_rfftn"), _along_named_axes),
    "fft_irfftn": lambda found: _to_real_along_named_axes(_along_named_axes(found)),
    **dict.fromkeys(("fft_hfft", "fft_irfft"), _to_real),
}
"""Adapters of library functions that deviate from the schema or the standard, by operator."""
