"""Checks that the derivative of an operator is registered for an Autograd key.

Mirrors ``torch/testing/_internal/optests/autograd_registration.py``.
"""

from __future__ import annotations

from opdispatch.errors import OpCheckError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AFTER_AUTOGRAD_KEYSET, AUTOGRAD_KEYSET
from opdispatch.local_state.grad_mode import enable_grad
from opdispatch.optests.sample import Sample, off_leaf, tensors_in
from opdispatch.tensors.tensor import Tensor

_FOR_ALL = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def check_autograd_registration(sample: Sample) -> None:
    """Check that the derivative is not implemented in the kernel of a backend.

    If the operator has no kernel that serves an Autograd key, the results of its backend kernel
    must not require gradients. Nothing is checked if no argument requires gradients. Raises
    OpCheckError, and the operator's own errors.
    """
    if not sample.requires_grad:
        return
    op = sample.op
    with enable_grad():
        args, kwargs = sample.copies(off_leaf)
    stack = op.bind(args, kwargs)
    keys = op.dispatch_keys(stack)
    of_autograd = [*(key for key in keys if AUTOGRAD_KEYSET.has(key)), *_FOR_ALL]
    if any(map(op.has_kernel_for_dispatch_key, of_autograd)):
        return
    # Run below Autograd without its fallback, which would disable recording in the kernel.
    with enable_grad(), sample.same_random_numbers():
        result = op.redispatch(keys & AFTER_AUTOGRAD_KEYSET, *args, **kwargs)
    given = {id(each) for each in tensors_in((args, kwargs))}
    for each in tensors_in(result):
        if isinstance(each, Tensor) and each.requires_grad and id(each) not in given:
            raise OpCheckError(
                f"{op.name} has no kernel for Autograd, and a kernel for a backend that records "
                f"gradients by itself, with {each.grad_fn}",
                hint="register the derivative with register_autograd, or the kernel for "
                "CompositeImplicitAutograd if it consists of calls of other operators",
                operator=str(op.name),
            )
