"""Fourier transforms: shapes and dtypes of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.meta_dtypes import DType, find_dtype
from opdispatch.native.array.operators.meta_shapes import (
    Axes,
    Shape,
    check_axes,
    check_axis,
    refusal,
    replace_extent,
)

_ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_SEVERAL_AXES = ("fftn", "ifftn", "rfftn", "irfftn")
_TO_HALF = ("rfft", "ihfft", "rfftn")
_FROM_HALF = ("irfft", "hfft", "irfftn")


def _check(name: str, points: int, norm: str) -> None:
    if points < 1:
        raise refusal(name, f"needs at least one point, not {points}")
    if norm not in ("backward", "ortho", "forward"):
        raise refusal(name, f"takes norm='backward', 'ortho' or 'forward', not {norm!r}")


def _transform(name: str) -> Callable[..., MetaArray]:
    full_name, function = f"fft_{name}", getattr(np.fft, name)

    def kernel(
        x: MetaArray, *, n: int | None = None, axis: int = -1, norm: str = "backward"
    ) -> MetaArray:
        place = check_axis(full_name, axis, len(x.shape))
        points = x.shape[place]
        if n is not None:
            points = n
        elif name in _FROM_HALF:
            points = 2 * (points - 1)
        _check(full_name, points, norm)
        extent = points // 2 + 1 if name in _TO_HALF else points
        dtype = find_dtype(full_name, function, (2,), x.dtype)
        return MetaArray(replace_extent(x.shape, place, extent), dtype)

    return kernel


def _transform_several(name: str) -> Callable[..., MetaArray]:
    full_name, function = f"fft_{name}", getattr(np.fft, name)

    def kernel(
        x: MetaArray,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> MetaArray:
        if axes is None and s is not None:
            axes = range(-len(s), 0)
        places = check_axes(full_name, axes, len(x.shape), repeatable=True)
        points = _find_points(full_name, x.shape, s, places)
        if not places:
            return MetaArray(x.shape, find_dtype(full_name, function, (2,), x.dtype))
        if s is None and name in _FROM_HALF:
            points[-1] = 2 * (points[-1] - 1)
        for each in points:
            _check(full_name, each, norm)
        shape = x.shape
        order = list(zip(places, points, strict=True))
        if name in _TO_HALF:
            place, extent = order.pop()
            shape = replace_extent(shape, place, extent // 2 + 1)
        for place, extent in order if name in _FROM_HALF else reversed(order):
            shape = replace_extent(shape, place, extent)
        dtype = find_dtype(full_name, function, (2,) * min(len(places), 2), x.dtype)
        return MetaArray(shape, dtype)

    return kernel


def _find_points(name: str, shape: Shape, s: Sequence[int] | None, places: Shape) -> list[int]:
    if s is None:
        return [shape[place] for place in places]
    if len(s) != len(places):
        raise refusal(name, f"was given {len(s)} extents for {len(places)} axes")
    return [
        shape[place] if extent == -1 else extent for place, extent in zip(places, s, strict=True)
    ]


def _shift(name: str) -> Callable[..., MetaArray]:
    def kernel(x: MetaArray, *, axes: Axes = None) -> MetaArray:
        check_axes(name, axes, len(x.shape), repeatable=True)
        return MetaArray(x.shape, x.dtype)

    return kernel


def _frequencies(name: str) -> Callable[..., MetaArray]:
    def kernel(
        n: int, *, d: float = 1.0, dtype: DType | None = None, device: Any = None
    ) -> MetaArray:
        extent = n // 2 + 1 if name == "fft_rfftfreq" else n
        return MetaArray((extent,), np.float64 if dtype is None else dtype)

    return kernel


META_FFT: dict[str, Callable[..., Any]] = {
    **{f"fft_{name}": _transform(name) for name in _ONE_AXIS},
    **{f"fft_{name}": _transform_several(name) for name in _SEVERAL_AXES},
    **{name: _shift(name) for name in ("fft_fftshift", "fft_ifftshift")},
    **{name: _frequencies(name) for name in ("fft_fftfreq", "fft_rfftfreq")},
}
"""Meta functions of the extension ``fft``."""
