"""Functionalization of operators that have no rule for it.

As in ``FunctionalizeFallbackKernel.cpp`` of PyTorch, for tensors without a functional wrapper,
which are all there are here: nothing is unwrapped or wrapped, and the operator is called once
more with Functionalize switched off. An operator that writes to its arguments or returns views
of them cannot be functionalized in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.kernel_function import KernelFunction
from opdispatch.local_dispatch_key_set import ExcludeDispatchKeyGuard

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle


def call_without_functionalize(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Calls the operator with Functionalize excluded.

    Raises NoKernelError if its schema has alias annotations.
    """
    schema = op.call_signature.schema
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        raise op.no_kernel_error(
            "Functionalize",
            f"{op.name} has alias annotations, and no rule for its functionalization: {schema}",
        )
    with ExcludeDispatchKeyGuard(DispatchKey.Functionalize):
        op.call_boxed(stack)


FALLBACKS = {DispatchKey.Functionalize: KernelFunction.from_boxed(call_without_functionalize)}
