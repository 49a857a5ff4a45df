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
    """Some functions return the very array where there is nothing to do."""

    def new(x: Any, *args: Any, **options: Any) -> Any:
        result = found(x, *args, **options)
        return x.copy() if result is x else result

    return new


def _diagonal(found: Kernel) -> Kernel:
    """NumPy's is a view that cannot be written to; PyTorch's, and CuPy's, can."""
    found = _beyond_matrix(found)

    def diagonal(x: Any, *, offset: int) -> Any:
        is_usual = type(x) is np.ndarray and -_FARTHEST <= offset <= _FARTHEST
        result = x.diagonal(offset, -2, -1) if is_usual else found(x, offset=offset)
        if isinstance(result, np.ndarray) and x.flags.writeable:
            result.flags.writeable = True
        return result

    return diagonal


def _beyond_matrix(found: Kernel) -> Kernel:
    """Those beyond a matrix are all empty."""

    def of_diagonal(x: Any, *, offset: int, **options: Any) -> Any:
        if not -_FARTHEST <= offset <= _FARTHEST:
            farthest = max(x.shape, default=0)
            offset = max(-farthest, min(offset, farthest))
        return found(x, offset=offset, **options)

    return of_diagonal


def _along_named_axes(found: Kernel) -> Kernel:
    """NumPy no longer wants to guess which axes ``s`` is about: the last ones.

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
    """LAPACK never ends with the singular values of some matrices that have an infinity, and finds
    a rank in others; ``eig`` refuses them by itself.
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
    """NumPy looks for the largest singular value, and a matrix without elements has none."""
    found = _of_finite_elements("linalg_matrix_rank")(found)

    def matrix_rank(x: Any, **options: Any) -> Any:
        if len(x.shape) > 1 and 0 in x.shape[-2:]:
            x = array_namespace(x).zeros((*x.shape[:-2], 1, 1), dtype=x.dtype, device=x.device)
        return found(x, **options)

    return matrix_rank


def _to_real(found: Kernel) -> Kernel:
    """NumPy leaves what was in memory in the result, where there are no points to fill up."""

    def transform(x: Any, *, n: int | None = None, axis: int = -1, **options: Any) -> Any:
        if isinstance(x, np.ndarray) and x.shape[axis] == 0:
            x = _with_a_zero(x, axis)
        return found(x, n=n, axis=axis, **options)

    return transform


def _to_real_along_named_axes(found: Kernel) -> Kernel:
    """The same, of the last of several axes."""

    def transform(x: Any, *, s: Any = None, axes: Any = None, **options: Any) -> Any:
        last = -1 if axes is None else axes[-1]
        if isinstance(x, np.ndarray) and x.shape[last] == 0:
            x = _with_a_zero(x, last)
        return found(x, s=s, axes=axes, **options)

    return transform


def _with_a_zero(x: Any, axis: int) -> Any:
    """Of an array that has no elements along that axis."""
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
"""What is put around a library's function where it differs, by operator."""
