"""The keys of nested function transforms, while no transform is under way: an error.

In PyTorch (``functorch/DynamicLayer.cpp``, ``TensorWrapper.cpp``) these hand a call to the
innermost transform, or take the wrapper of a finished one off. There are no transforms and no
wrappers here. PyTorch fails at each of these keys in that case; at the back mode, the process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.kernel_function import KernelFunction

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_MISSING = {
    DispatchKey.FuncTorchDynamicLayerBackMode: "no function transform is under way",
    DispatchKey.FuncTorchDynamicLayerFrontMode: "no function transform is under way",
    DispatchKey.FuncTorchGradWrapper: "no argument is the wrapper of a finished transform",
}


def _refusing(key: DispatchKey, missing: str) -> KernelFunction:
    def refuse(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        raise op.no_kernel_error(str(key), f"{op.name} arrived at {key}, and {missing}")

    return KernelFunction.from_boxed(refuse)


FALLBACKS = {key: _refusing(key, missing) for key, missing in _MISSING.items()}
