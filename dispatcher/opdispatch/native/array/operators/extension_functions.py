"""The functions of the standard's extensions ``linalg`` and ``fft``, as their schemas want them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from opdispatch.native.array.operators.functions import Kernel
from opdispatch.native.array.operators.meta_shapes import show

_FARTHEST = 2**31 - 1
"""The diagonal that is farthest from the main one, of those that NumPy takes."""


def _new(found: Kernel) -> Kernel:
    """Adapt a function that may return its argument: return a new array."""

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
    """Adapt ``diagonal`` beyond the matrix: such diagonals are empty."""

    def of_diagonal(x: Any, *, offset: int, **options: Any) -> Any:
        if not -_FARTHEST <= offset <= _FARTHEST:
            farthest = max(x.shape, default=0)
            offset = max(-farthest, min(offset, farthest))
        return found(x, offset=offset, **options)

    return of_diagonal


def _along_named_axes(found: Kernel) -> Kernel:
    """Adapt a transform with ``s`` but no axes: NumPy requires them; the last ones are meant.

    Along none, it returns real numbers as they are.
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
    """Adapt a decomposition to refuse infinities and NaN.

    LAPACK never ends with the singular values of some matrices that have an infinity, and finds a
    rank in others; ``eig`` refuses them by itself.
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
    """Adapt ``matrix_rank``.

    NumPy looks for the largest singular value, and an empty matrix has none.
    """
    found = _of_finite_elements("linalg_matrix_rank")(found)

    def matrix_rank(x: Any, **options: Any) -> Any:
        if len(x.shape) > 1 and 0 in x.shape[-2:]:
            x = array_namespace(x).zeros((*x.shape[:-2], 1, 1), dtype=x.dtype, device=x.device)
        return found(x, **options)

    return matrix_rank


def _to_real(found: Kernel) -> Kernel:
    """Adapt a transform to reals.

    NumPy leaves the memory uninitialized if the input has no points to pad.
    """

    def transform(x: Any, *, n: int | None = None, axis: int = -1, **options: Any) -> Any:
        if isinstance(x, np.ndarray) and x.shape[axis] == 0:
            x = _with_a_zero(x, axis)
        return found(x, n=n, axis=axis, **options)

    return transform


def _to_real_along_named_axes(found: Kernel) -> Kernel:
    """Adapt a transform to reals of several axes, like ``_to_real`` of the last one."""

    def transform(x: Any, *, s: Any = None, axes: Any = None, **options: Any) -> Any:
        last = -1 if axes is None else axes[-1]
        if isinstance(x, np.ndarray) and x.shape[last] == 0:
            x = _with_a_zero(x, last)
        return found(x, s=s, axes=axes, **options)

    return transform


def _with_a_zero(x: Any, axis: int) -> Any:
    """Return zeros of extent 1 along that axis, in place of an array without elements there."""
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
"""Adapters around a library's function where it differs, by operator."""
