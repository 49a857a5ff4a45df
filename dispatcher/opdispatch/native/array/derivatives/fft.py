"""Derivatives of Fourier transforms: the opposite transform, with the adjoint normalization.

Transforms of real input or output have half of the spectrum: the rest are complex conjugates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.functionalities.derivative import Formula, Formulas, Forward
from opdispatch.native.array.derivatives.manipulation import part_of, resized
from opdispatch.native.array.derivatives.namespace import conj, with_forward, xp

Axes = Sequence[int]

_BACK = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""``norm`` of the adjoint transform, by ``norm`` of the transform."""


def _cut_to(x: Any, shape: Sequence[int], axes: Axes) -> Any:
    for axis in axes:
        x = resized(x, shape[axis], axis)
    return x


def _complex(name: str) -> Callable[..., Any]:
    def adjoint(grad: Any, shape: Any, n: int, axes: Axes, norm: str) -> Any:
        back = getattr(xp.fft, name)(grad, axes=axes, norm=_BACK[norm])
        return _cut_to(back, shape, axes)

    return adjoint


def _of_real(grad: Any, shape: Any, n: int, axes: Axes, norm: str) -> Any:
    """Return the gradient of ``rfft``'s input; ``n`` is the transformed extent of the last axis."""
    whole = xp.fft.ifftn(resized(grad, n, axes[-1]), axes=axes, norm=_BACK[norm])
    return _cut_to(xp.real(whole), shape, axes)


def _to_real(grad: Any, shape: Any, n: int, axes: Axes, norm: str) -> Any:
    """Return the gradient of ``irfft``'s input: elements with a mirrored conjugate count twice."""
    axis = axes[-1]
    count = grad.shape[axis]
    half = xp.fft.rfftn(grad, axes=axes, norm=_BACK[norm])
    alone = part_of(half, axis, 0, 1)
    twice = part_of(half, axis, 1, (count + 1) // 2) * 2
    middle = part_of(half, axis, (count + 1) // 2, half.shape[axis])
    return _cut_to(xp.concat([alone, twice, middle], axis=axis), shape, axes)


def _single(adjoint: Callable[..., Any]) -> Formula:
    def formula(grad: Any, x_shape: Any, n: int | None, axis: int, norm: str) -> Any:
        return adjoint(grad, x_shape, x_shape[axis] if n is None else n, [axis], norm)

    return formula


def _several(adjoint: Callable[..., Any]) -> Formula:
    def formula(grad: Any, x_shape: Any, s: Any, axes: Axes | None, norm: str) -> Any:
        if axes is None:
            axes = [*range(-len(x_shape if s is None else s), 0)]
        if not axes:  # nothing was transformed
            return grad
        points = x_shape[axes[-1]] if s is None or s[-1] == -1 else s[-1]
        return adjoint(grad, x_shape, points, axes, norm)

    return formula


def _hfft(grad: Any, shape: Any, n: int, axes: Axes, norm: str) -> Any:
    return conj(_to_real(grad, shape, n, axes, _BACK[norm]))


def _ihfft(grad: Any, shape: Any, n: int, axes: Axes, norm: str) -> Any:
    return _of_real(conj(grad), shape, n, axes, _BACK[norm])


_FFT: dict[str, Formulas] = {
    "fft_fft": {"x": _single(_complex("ifftn"))},
    "fft_fftn": {"x": _several(_complex("ifftn"))},
    "fft_fftshift": {"x": lambda grad, axes: xp.fft.ifftshift(grad, axes=axes)},
    "fft_hfft": {"x": _single(_hfft)},
    "fft_ifft": {"x": _single(_complex("fftn"))},
    "fft_ifftn": {"x": _several(_complex("fftn"))},
    "fft_ifftshift": {"x": lambda grad, axes: xp.fft.fftshift(grad, axes=axes)},
    "fft_ihfft": {"x": _single(_ihfft)},
    "fft_irfft": {"x": _single(_to_real)},
    "fft_irfftn": {"x": _several(_to_real)},
    "fft_rfft": {"x": _single(_of_real)},
    "fft_rfftn": {"x": _several(_of_real)},
}
FFT = with_forward(Forward.LINEAR, _FFT)
