"""Interception of calls in Python, for tensors of classes that intercept none.

PyTorch registers these in ``PythonFallbackKernel.cpp``. `opdispatch.Tensor` has no hook that a
call could be handed to, so the Python key does what it does in PyTorch for a tensor whose
class has none: it calls the operator once more, with every key above it switched off.
PythonTLSSnapshot and PreDispatch have nothing to note down then, and let the call go on below;
PythonDispatcher has no Python dispatcher to ask, and is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.functionalities.below import redispatch_below
from opdispatch.kernel_function import KernelFunction
from opdispatch.local_dispatch_key_set import ForceDispatchKeyGuard, local_dispatch_key_set

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_K = DispatchKey
_ABOVE_PYTHON = DispatchKeySet.full() - DispatchKeySet.full_after(_K.Python).add(_K.Python)


def call_below_python(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Calls the operator without the keys above Python, and without an included Python key.

    Raises NoKernelError if there is no tensor, and where the call would arrive here again: at
    a tensor that has the key itself, where PyTorch would call the hook of the tensor's class.
    """
    included, excluded = local_dispatch_key_set()
    bits = op.call_signature.key_bits(stack)
    if not bits:
        raise op.no_kernel_error(
            "Python", f"{op.name} arrived at Python without a tensor whose class could handle it"
        )
    if DispatchKeySet(bits).has(_K.Python) and not excluded.has(_K.Python):
        raise op.no_kernel_error(
            "Python", f"{op.name} arrived at Python with a tensor whose class handles no calls"
        )
    with ForceDispatchKeyGuard(included.remove(_K.Python), excluded | _ABOVE_PYTHON):
        op.call_boxed(stack)


def refuse_python_dispatcher(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raises NoKernelError."""
    raise op.no_kernel_error(
        "PythonDispatcher", f"{op.name} arrived at PythonDispatcher, and no such dispatcher is set"
    )


FALLBACKS = {
    _K.Python: KernelFunction.from_boxed(call_below_python),
    _K.PythonDispatcher: KernelFunction.from_boxed(refuse_python_dispatcher),
    _K.PythonTLSSnapshot: redispatch_below(_K.PythonTLSSnapshot),
    _K.PreDispatch: redispatch_below(_K.PreDispatch),
}
