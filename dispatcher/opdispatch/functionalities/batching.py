"""Batched tensors, of operators that have no batching rule.

PyTorch's fallbacks (the two ``LegacyBatchingRegistrations.cpp``) call the operator for each
element of the batch. No tensor has a batch dimension here that one could go along, and
PyTorch's fail for such a tensor, too. A call without any tensor is made once more, except for
the older of the two kinds of batches, with the key switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.errors import NoKernelError
from opdispatch.kernel_function import KernelFunction
from opdispatch.local_dispatch_key_set import ExcludeDispatchKeyGuard
from opdispatch.schema_type import TENSOR, ListType

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_K = DispatchKey


def _refusal(op: OperatorHandle, key: DispatchKey, why: str) -> NoKernelError:
    return op.no_kernel_error(str(key), f"{op.name} has no batching rule, and {why}")


def refuse_batch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raises NoKernelError: the fallback of the older batches."""
    raise _refusal(op, _K.Batched, "no argument has a batch dimension to go along")


def _calling_without(key: DispatchKey, *off: DispatchKey) -> KernelFunction:
    def call_without_batch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        schema = op.call_signature.schema
        if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
            raise _refusal(op, key, "its alias annotations rule out going along the batch")
        if any(r.type is not TENSOR for r in schema.returns) or any(
            isinstance(a.type, ListType) and a.type.dispatches for a in schema.arguments
        ):
            raise _refusal(op, key, "not all its arguments and returns are single tensors")
        if any(find_key_bits(value) is not None for value in stack):
            raise _refusal(op, key, "no argument has a batch dimension to go along")
        with ExcludeDispatchKeyGuard(DispatchKeySet.of(*off)):
            op.call_boxed(stack)

    return KernelFunction.from_boxed(call_without_batch)


FALLBACKS = {
    _K.FuncTorchBatched: _calling_without(_K.FuncTorchBatched, _K.FuncTorchBatched),
    _K.BatchedNestedTensor: _calling_without(
        _K.BatchedNestedTensor, _K.FuncTorchBatched, _K.BatchedNestedTensor
    ),
    _K.Batched: KernelFunction.from_boxed(refuse_batch),
}
