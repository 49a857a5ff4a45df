"""What the functionality keys do, one file each; and the fallbacks every dispatcher starts with."""

from __future__ import annotations

from opdispatch.dispatch_key import DispatchKey
from opdispatch.functionalities import (
    autograd,
    batching,
    functionalize,
    functorch,
    math_bits,
    meta,
    passive,
    python,
    tracer,
    zero_tensor,
)
from opdispatch.kernel_function import KernelFunction

BUILTIN_FALLBACKS: dict[DispatchKey, KernelFunction] = {
    **passive.FALLBACKS,
    **meta.FALLBACKS,
    **functionalize.FALLBACKS,
    **math_bits.FALLBACKS,
    **zero_tensor.FALLBACKS,
    **autograd.FALLBACKS,
    **tracer.FALLBACKS,
    **batching.FALLBACKS,
    **functorch.FALLBACKS,
    **python.FALLBACKS,
}
"""The backend fallback of each runtime key that has one from the start: PyTorch's keys."""
