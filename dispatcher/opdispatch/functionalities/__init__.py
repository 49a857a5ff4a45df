"""The functionality keys, one file each; and the fallbacks every dispatcher starts with.

autograd           the keys Autograd, of operators that have no derivative
derivative, derivative_kernel, registered_autograd, autograd_kernel_text, redispatch_below
                   and of those that have one: of formulas, or of a function that goes back
forward_derivative, registered_jvp
                   forward mode of operators with formulas, or of a function of tangents
adinplace_or_view  versions are counted, and views know their bases
autocast           floating-point arguments are cast
tracer             the traces of the task record the call
functorch          nested function transforms: the topmost level, and on to the next
batched_fallback   batched tensors, without a batching rule and with one
functionalize_fallback, functional_counterpart
                   calls that write to nothing in the place of those that do
layer_text         the texts of kernels that are layers, as these are
python_fallback    modes, and classes that handle operators themselves
math_bits_fallback, zero_tensor_fallback
                   conjugates, negatives and zeros that are not computed
meta_fallback, fake, deferred_init, recorded_call
                   tensors without elements: shapes alone, a device too, and elements later
fallthrough        keys that let a call pass
cpu_fallback       what a device has no kernel for, on the host
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
