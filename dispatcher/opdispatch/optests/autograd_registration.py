"""Whether the derivative of an operator is registered where Autograd looks for it.

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
    """Raise OpCheckError, and what the operator raises.

    Nothing is checked where no argument requires gradients, or where the operator has a kernel for
    Autograd, for a key of that kind, or one that serves it. Without it, what its kernel for a
    backend returns must not require gradients by itself.
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
    # Below Autograd, but without what its fallback switches off: so that calls are recorded.
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
