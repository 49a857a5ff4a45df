"""Tensors known to be zero, of operators that have no rule for them.

PyTorch's fallback (``ZeroTensorFallback.cpp``) replaces them by tensors that hold zeros and goes
on below the key. A tensor always holds its elements here, so it goes on as it is; and may
not be written to, as in PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.kernel_function import KernelFunction

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_BIT = bits_of_key(DispatchKey.ZeroTensor)
_BELOW = DispatchKeySet.full_after(DispatchKey.ZeroTensor)


def redispatch_unless_written(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Redispatches below ZeroTensor.

    Raises NoKernelError if the operator writes to an argument that is a zero tensor.
    """
    for argument, value in zip(op.call_signature.schema.arguments, stack, strict=True):
        values = value if isinstance(value, list) else [value]
        if argument.is_write and any((find_key_bits(v) or 0) & _BIT for v in values):
            raise op.no_kernel_error(
                "ZeroTensor",
                f"{op.name} writes to its argument {argument.name!r}, which is a zero tensor",
            )
    op.redispatch_boxed(keys & _BELOW, stack)


FALLBACKS = {DispatchKey.ZeroTensor: KernelFunction.from_boxed(redispatch_unless_written)}
