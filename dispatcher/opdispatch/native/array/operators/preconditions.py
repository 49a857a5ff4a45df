"""Check arguments outside a function's domain that array libraries report badly, or not at all.

NumPy's ``tril`` turns a vector into a matrix, its ``outer`` flattens, ``arange`` accepts complex
bounds, and a bad axis raises ``tuple index out of range``. The standard leaves these undefined;
here they raise the same error on every device, before computing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.local_state.numpy_dtype_promotion import NUMPY_PROMOTION
from opdispatch.native.array.operators.meta_shapes import (
    Axes,
    check_axes,
    check_axis,
    refusal,
    show,
)
from opdispatch.native.array.operators.type_promotion import (
    KINDS_OF_SCALAR,
    check_complex,
    check_scalar,
)

Check = Callable[..., None]


def with_precondition(operator: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call``, raising ArgumentError for arguments outside the operator's domain."""
    check = _CHECKS.get(operator)
    if check is None:
        return call

    def call_checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return call(*args, **kwargs)

    return call_checked


def _triangle(name: str) -> Check:
    def check(x: Any, *, k: int = 0) -> None:
        if len(x.shape) < 2:
            raise refusal(name, f"needs at least two dimensions, not the shape {show(x.shape)}")

    return check


def _arange(start: Any, stop: Any = None, step: Any = 1, **options: Any) -> None:
    first, last = (0, start) if stop is None else (start, stop)
    listed = f"from {first!r} to {last!r} by {step!r}"
    if any(isinstance(each, complex) for each in (first, last, step)):
        raise refusal("arange", f"takes real numbers, but was to go {listed}")
    if step == 0:
        raise refusal("arange", f"cannot go {listed}")


def _full(shape: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> None:
    _check_filled("full", fill_value, dtype)


def _full_like(x: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> None:
    _check_filled("full_like", fill_value, x.dtype if dtype is None else dtype)


def _linspace(start: Any, stop: Any, num: int, *, dtype: Any = None, **options: Any) -> None:
    for each in (start, stop):
        _check_filled("linspace", each, dtype)


def _check_filled(name: str, value: Any, dtype: np.dtype[Any] | None) -> None:
    if dtype is not None and isinstance(value, complex):
        check_complex(name, np.dtype(complex), dtype)


def _clip(x: Any, min: Any = None, max: Any = None) -> None:
    for bound in (min, max):
        if isinstance(bound, complex) and not NUMPY_PROMOTION.get():
            check_complex("clip", np.dtype(complex), x.dtype)
        if bound is not None and x.dtype.kind not in KINDS_OF_SCALAR[type(bound)]:
            check_scalar("clip", x.dtype, bound)


def _permute_dims(x: Any, axes: Sequence[int]) -> None:
    if not all(-(2**31) <= each < 2**31 for each in axes):  # NumPy wraps 2**32 to 0
        check_axes("permute_dims", axes, len(x.shape))


def _frequencies(name: str) -> Check:
    def check(n: int, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> None:
        if n < 1 or d == 0:
            raise refusal(name, f"has no frequencies for {n} points at distances of {d}")
        if dtype is not None and dtype.kind in "biuc":
            raise refusal(name, f"gives real floating-point numbers, not {dtype}")

    return check


def _cumulative(name: str) -> Check:
    def check(x: Any, *, include_initial: bool = False, **options: Any) -> None:
        if include_initial and not x.shape:
            raise refusal(name, "has no initial element for an array of 0 dimensions")

    return check


_OF_REAL_NUMBERS = frozenset({"fft_rfft", "fft_ihfft", "fft_rfftn"})
_OF_HALF_A_SPECTRUM = frozenset({"fft_irfft", "fft_hfft", "fft_irfftn"})


def _transform(name: str) -> Check:
    def check(x: Any, *, n: int | None = None, axis: int = -1, **options: Any) -> None:
        at = check_axis(name, axis, len(x.shape))
        _check_points(name, x, _points(name, x, (at,)) if n is None else (n,))

    return check


def _transforms(name: str) -> Check:
    def check(x: Any, *, s: Sequence[int] | None = None, axes: Axes = None, **options: Any) -> None:
        if axes is None and s is not None:
            axes = range(-len(s), 0)
        chosen = check_axes(name, axes, len(x.shape), repeatable=True)
        if not chosen and name not in ("fft_fftn", "fft_ifftn"):
            raise refusal(name, f"needs an axis to transform of the shape {show(x.shape)}")
        if s is None:
            _check_points(name, x, _points(name, x, chosen))
        else:  # -1 means the whole axis; libraries check that ``s`` and ``axes`` agree
            given = zip(s, chosen, strict=False)
            _check_points(name, x, [x.shape[axis] if n == -1 else n for n, axis in given])

    return check


def _points(name: str, x: Any, axes: Sequence[int]) -> list[int]:
    """Return the extents of ``x`` along ``axes``, the default numbers of points."""
    points = [x.shape[axis] for axis in axes]
    if points and name in _OF_HALF_A_SPECTRUM:
        points[-1] = 2 * (points[-1] - 1)
    return points


def _check_points(name: str, x: Any, points: Sequence[int]) -> None:
    if name in _OF_REAL_NUMBERS and x.dtype.kind == "c":
        raise refusal(name, f"is for real numbers, not {x.dtype}, which has imaginary parts")
    if min(points, default=1) < 1:
        raise refusal(name, f"needs points to transform, and was given {show(points)} of them")


def _along_axes(name: str) -> Check:
    def check(x: Any, *, axes: Axes = None, **options: Any) -> None:
        check_axes(name, axes, len(x.shape), repeatable=True)

    return check


def _searchsorted(x1: Any, x2: Any, **options: Any) -> None:
    for each in (x1, x2):
        if isinstance(each, complex) or getattr(each, "dtype", x1.dtype).kind == "c":
            kind = getattr(each, "dtype", "complex")
            raise refusal(
                "searchsorted", f"needs elements with an order, which {kind} does not have"
            )


def _tensordot(x1: Any, x2: Any, *, axes: int | Sequence[Sequence[int]] = 2) -> None:
    name, first, second = "tensordot", x1.shape, x2.shape
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(first), len(second)):
            raise refusal(name, f"cannot sum over {axes} axes of the shapes {show(first, second)}")
        axes = (range(len(first) - axes, len(first)), range(axes))
    if len(axes) != 2:
        raise refusal(name, f"needs the axes of two arrays, not of {len(axes)}")
    of_first = check_axes(name, axes[0], len(first))
    of_second = check_axes(name, axes[1], len(second))
    if [first[axis] for axis in of_first] != [second[axis] for axis in of_second]:
        raise refusal(name, f"was given shapes {show(first, second)}, whose extents do not agree")


def _vecdot(x1: Any, x2: Any, *, axis: int = -1) -> None:
    _check_joint_axis("vecdot", x1, x2, axis)


def _check_joint_axis(name: str, x1: Any, x2: Any, axis: int) -> None:
    """Raise ArgumentError for an axis >= 0, ambiguous if the numbers of dimensions differ."""
    if axis >= 0 and len(x1.shape) != len(x2.shape):
        shapes = show(x1.shape, x2.shape)
        raise refusal(name, f"needs an axis from -1 downwards for the shapes {shapes}, not {axis}")


def _cross(x1: Any, x2: Any, *, axis: int = -1) -> None:
    name = "linalg_cross"
    _check_joint_axis(name, x1, x2, axis)
    extents = [each.shape[check_axis(name, axis, len(each.shape))] for each in (x1, x2)]
    if extents != [3, 3]:
        raise refusal(
            name,
            f"needs the extent 3 at axis {axis}, but was given shapes {show(x1.shape, x2.shape)}",
        )


def _outer(x1: Any, x2: Any) -> None:
    if (len(x1.shape), len(x2.shape)) != (1, 1):
        raise refusal(
            "linalg_outer",
            f"needs two arrays of one dimension, but was given shapes {show(x1.shape, x2.shape)}",
        )


def _real(name: str, option: str) -> Check:
    def check(x: Any, **options: Any) -> None:
        if isinstance(value := options.get(option), complex):
            raise refusal(name, f"takes a real number as {option!r}, not {value}")

    return check


def _qr(x: Any, *, mode: str = "reduced") -> None:
    if mode not in ("reduced", "complete"):
        raise refusal("linalg_qr", f"takes mode='reduced' or 'complete', not {mode!r}")


def _meshgrid(arrays: Sequence[Any], *, indexing: str = "xy") -> None:
    for each in arrays:
        if len(each.shape) > 1:
            raise refusal(
                "meshgrid", f"takes arrays of one dimension, not of shape {show(each.shape)}"
            )


_CHECKS: dict[str, Check] = {
    "arange": _arange,
    "clip": _clip,
    "full": _full,
    "full_like": _full_like,
    "linspace": _linspace,
    "meshgrid": _meshgrid,
    "permute_dims": _permute_dims,
    "std": _real("std", "correction"),
    "var": _real("var", "correction"),
    "linalg_vector_norm": _real("linalg_vector_norm", "ord"),
    "searchsorted": _searchsorted,
    "searchsorted.Scalar": _searchsorted,
    "tensordot": _tensordot,
    "tensordot.dims": _tensordot,
    "vecdot": _vecdot,
    "linalg_cross": _cross,
    "linalg_outer": _outer,
    "linalg_qr": _qr,
    **{name: _triangle(name) for name in ("tril", "triu")},
    **{name: _cumulative(name) for name in ("cumulative_prod", "cumulative_sum")},
    **{name: _frequencies(name) for name in ("fft_fftfreq", "fft_rfftfreq")},
    **{
        f"fft_{name}": _transform(f"fft_{name}")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{name: _along_axes(name) for name in ("fft_fftshift", "fft_ifftshift")},
    **{f"fft_{name}": _transforms(f"fft_{name}") for name in ("fftn", "ifftn", "rfftn", "irfftn")},
}
