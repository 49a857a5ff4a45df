"""Fallback for meta tensors, which raises a descriptive error.

As in PyTorch's ``MetaFallbackKernel.cpp``: the result shapes of an operator without a Meta kernel
are unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


def refuse_meta_tensors(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raise NoKernelError."""
    raise op.no_kernel_error(
        "Meta", f"{op.name} was called with Meta tensors, and has no Meta kernel"
    )


_META = to_runtime_key(DispatchKey.Dense, BackendComponent.Meta)
FALLBACKS = {_META: KernelFunction.from_boxed(refuse_meta_tensors)}
