"""Batched tensors, of operators that have no batching rule: an error that says so.

PyTorch's fallbacks (the two ``LegacyBatchingRegistrations.cpp``) call the operator for each
element of the batch. A tensor has no batch dimension here that one could go along, and
PyTorch's fail for such a tensor, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.kernel_function import KernelFunction

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

KEYS = (DispatchKey.FuncTorchBatched, DispatchKey.BatchedNestedTensor, DispatchKey.Batched)


def _refusing(key: DispatchKey) -> KernelFunction:
    def refuse_batch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        what = f"{op.name} has no batching rule, and no argument has a batch dimension to go along"
        raise op.no_kernel_error(str(key), what)

    return KernelFunction.from_boxed(refuse_batch)


FALLBACKS = {key: _refusing(key) for key in KEYS}
