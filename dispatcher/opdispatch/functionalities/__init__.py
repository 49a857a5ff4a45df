"""The functionality keys, one file each; and the fallbacks every dispatcher starts with.

autograd            the keys Autograd, of operators that have no derivative
derivative, derivative_kernel, registered_autograd, autograd_kernel_text, below
                    and of those that have one: of formulas, or of a function that goes back
forward_derivative, registered_jvp
                    forward mode of operators with formulas, or of a function of tangents
adinplace_or_view   versions are counted, and views know their bases
autocast            floating-point arguments are cast
tracer              the traces of the task record the call
functorch           nested function transforms: the topmost level, and on to the next
batching            batched tensors, without a batching rule and with one
functionalize, functional_counterpart
                    calls that write to nothing in the place of those that do
layer_text          the texts of kernels that are layers, as these are
python              modes, and classes that handle operators themselves
math_bits, zero_tensor
                    conjugates, negatives and zeros that are not computed
meta, fake, deferred_init, recording
                    tensors without elements: shapes alone, a device too, and elements later
passive             those that let a call pass
cpu_fallback        what a device has no kernel for, on the host
"""

from __future__ import annotations

from opdispatch.dispatch.builtin_fallbacks import BUILTIN_FALLBACKS
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

for _fallbacks in (
    passive.FALLBACKS,
    meta.FALLBACKS,
    functionalize.FALLBACKS,
    math_bits.FALLBACKS,
    zero_tensor.FALLBACKS,
    autograd.FALLBACKS,
    tracer.FALLBACKS,
    batching.FALLBACKS,
    functorch.FALLBACKS,
    python.FALLBACKS,
):
    BUILTIN_FALLBACKS.update(_fallbacks)
