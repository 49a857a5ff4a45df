"""The key ZeroTensor: tensors of zeros without storage.

Operators without a rule receive materialized zeros, and must not write to them, as in PyTorch's
``ZeroTensorFallback.cpp``. ``zeros_of_zeros`` is a rule for operators whose results are zero as
well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.arrays import MetaArray, find_key_bits
from opdispatch.arrays.lazy_array import materialized
from opdispatch.arrays.zero_array import ZERO_TENSOR, ZeroArray
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BELOW = DispatchKeySet.full_after(DispatchKey.ZeroTensor)
_META = DispatchKeySet.of(to_runtime_key(DispatchKey.Dense, BackendComponent.Meta))


def materialize(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Redispatch below ZeroTensor with materialized zeros.

    Raises NoKernelError if the operator writes to an argument that is a zero tensor.
    """
    for place, argument in enumerate(op.call_signature.schema.arguments):
        value = stack[place]
        values = value if isinstance(value, list) else [value]
        if argument.is_write and any((find_key_bits(v) or 0) & ZERO_TENSOR for v in values):
            raise op.no_kernel_error(
                "ZeroTensor",
                f"{op.name} writes to its argument {argument.name!r}, which is a zero tensor",
            )
        if isinstance(value, list):
            stack[place] = [_materialized(each) for each in value]
        else:
            stack[place] = _materialized(value)
    op.redispatch_boxed(keys & _BELOW, stack)


def zeros_of_zeros(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run an operator whose results are zeros if one argument is: a kernel for ZeroTensor.

    The operator's Meta kernel determines the shapes.
    """
    zero = next(z for z in map(_array_of, stack) if isinstance(z, ZeroArray))
    is_tensor = any(isinstance(value, Tensor) for value in stack)
    stack[:] = map(_shape_of, stack)
    op.redispatch_boxed(_META, stack)
    stack[:] = [_zeros_like(value, zero.device, is_tensor) for value in stack]


def zeros_divided(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run a division: a zero tensor divided by anything but a zero tensor is a zero tensor."""
    dividend, divisor = (isinstance(_array_of(value), ZeroArray) for value in stack)
    (zeros_of_zeros if dividend and not divisor else materialize)(op, keys, stack)


def zeros_added(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run an addition or subtraction: if both arguments are zero tensors, so is the result."""
    are_zeros = all(isinstance(_array_of(value), ZeroArray) for value in stack)
    (zeros_of_zeros if are_zeros else materialize)(op, keys, stack)


def _array_of(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


def _materialized(value: Any) -> Any:
    array = _array_of(value)
    if not isinstance(array, ZeroArray):
        return value
    zeros = materialized(array)
    return Tensor(zeros) if isinstance(value, Tensor) else zeros


def _shape_of(value: Any) -> Any:
    array = _array_of(value)
    return value if find_key_bits(array) is None else MetaArray(tuple(array.shape), array.dtype)


def _zeros_like(meta: Any, device: str, is_tensor: bool) -> Any:
    if isinstance(meta, list):
        return [_zeros_like(each, device, is_tensor) for each in meta]
    zeros = ZeroArray(meta.shape, meta.dtype, device)
    return Tensor(zeros) if is_tensor else zeros


FALLBACKS = {DispatchKey.ZeroTensor: KernelFunction.from_boxed(materialize)}
