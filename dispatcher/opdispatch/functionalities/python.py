"""Interception of calls in Python, for tensors of classes that intercept none.

PyTorch registers these in ``PythonFallbackKernel.cpp``. `opdispatch.Tensor` has no hook that a
call could be handed to, so the Python key does what it does in PyTorch for a tensor whose
class has none: the call goes on below, with every key above Python switched off meanwhile.
PythonTLSSnapshot and PreDispatch have nothing to note down then, and let the call go on below;
PythonDispatcher has no Python dispatcher to ask, and is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.functionalities.below import redispatch_below
from opdispatch.kernel_function import KernelFunction
from opdispatch.local_dispatch_key_set import ForceDispatchKeyGuard, local_dispatch_key_set

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_K = DispatchKey
_BELOW = DispatchKeySet.full_after(_K.Python)
_ABOVE = DispatchKeySet.full() ^ _BELOW.add(_K.Python)


def redispatch_below_python(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Redispatches below Python, without the keys above it and without an included Python key.

    Raises NoKernelError if there is no tensor.
    """
    if not any(find_key_bits(value) is not None for value in _flat(stack)):
        raise op.no_kernel_error(
            "Python", f"{op.name} arrived at Python without a tensor whose class could handle it"
        )
    included, excluded = local_dispatch_key_set()
    with ForceDispatchKeyGuard(included.remove(_K.Python), excluded | _ABOVE):
        op.redispatch_boxed(keys & _BELOW, stack)


def _flat(stack: list[Any]) -> Iterator[Any]:
    for value in stack:
        yield from value if isinstance(value, list) else [value]


def refuse_python_dispatcher(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raises NoKernelError."""
    raise op.no_kernel_error(
        "PythonDispatcher", f"{op.name} arrived at PythonDispatcher, and no such dispatcher is set"
    )


FALLBACKS = {
    _K.Python: KernelFunction.from_boxed(redispatch_below_python),
    _K.PythonDispatcher: KernelFunction.from_boxed(refuse_python_dispatcher),
    _K.PythonTLSSnapshot: redispatch_below(_K.PythonTLSSnapshot),
    _K.PreDispatch: redispatch_below(_K.PreDispatch),
}
