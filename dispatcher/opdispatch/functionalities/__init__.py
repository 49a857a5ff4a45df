"""The functionality keys, one file each, and the fallbacks registered in every dispatcher.

autograd           the Autograd keys, for operators without a derivative
derivative, derivative_kernel, registered_autograd, autograd_kernel_source, redispatch_below
                   operators with derivative formulas or a registered backward function
forward_derivative, registered_jvp
                   forward mode by formulas or a registered jvp function
adinplace_or_view  version counting, and tracking of views
autocast           casts of floating-point arguments
tracer             recording of calls by the traces of a task
functorch          nested function transforms, level by level
batched_fallback   batched tensors, with or without a batching rule
functionalize_fallback, functional_counterpart
                   functional calls in place of mutating ones
layer_kernel_source
                   source of kernels that are inlined as layers
python_fallback    modes and tensor subclasses (``__torch_dispatch__``)
math_bits_fallback, zero_tensor_fallback
                   lazy conjugates, negatives and zeros
meta_fallback, fake, deferred_init, recorded_call
                   tensors without elements: meta, fake, and deferred initialization
fallthrough        keys that fall through by default
cpu_fallback       kernels of the host for operators that a device lacks
"""

from __future__ import annotations

from opdispatch.dispatch.builtin_fallbacks import BUILTIN_FALLBACKS
from opdispatch.functionalities import (
    autograd,
    batched_fallback,
    fallthrough,
    functionalize_fallback,
    functorch,
    math_bits_fallback,
    meta_fallback,
    python_fallback,
    tracer,
    zero_tensor_fallback,
)

for _fallbacks in (
    fallthrough.FALLBACKS,
    meta_fallback.FALLBACKS,
    functionalize_fallback.FALLBACKS,
    math_bits_fallback.FALLBACKS,
    zero_tensor_fallback.FALLBACKS,
    autograd.FALLBACKS,
    tracer.FALLBACKS,
    batched_fallback.FALLBACKS,
    functorch.FALLBACKS,
    python_fallback.FALLBACKS,
):
    BUILTIN_FALLBACKS.update(_fallbacks)
