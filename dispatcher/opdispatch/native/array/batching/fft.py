"""Batching rules of Fourier transforms."""

from __future__ import annotations

from typing import Any

from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import axes_below
from opdispatch.native.array.batching.reductions import along_axis


def _of_axes(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a transform of several axes: by default the last ``len(s)``, or all without ``s``."""
    ndim, axes, extents = call.ndim(0), call.value("axes"), call.value("s")
    if axes is None and extents is not None:
        axes = list(range(-len(extents), 0))
    return call.run(axes=axes_below(call, axes, ndim, repeatable=True)), 0


def _shift(call: BatchedCall) -> tuple[Any, Any]:
    axes = axes_below(call, call.value("axes"), call.ndim(0), repeatable=True)
    return call.run(axes=axes), 0


FFT: dict[str, Rule] = {
    **{f"fft_{name}": along_axis for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft_{name}": _of_axes for name in ("fftn", "ifftn", "rfftn", "irfftn")},
    **dict.fromkeys(("fft_fftshift", "fft_ifftshift"), _shift),
}
