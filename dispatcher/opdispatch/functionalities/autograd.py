"""Autograd of operators that have no derivative: the call goes on below the Autograd keys.

As in ``VariableFallbackKernel.cpp`` of PyTorch, for the same keys: HIP, IPU, VE, PrivateUse2,
PrivateUse3 and nested tensors have no such fallback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.dispatch_key_set import AFTER_AUTOGRAD_KEYSET, DispatchKeySet
from opdispatch.kernel_function import KernelFunction

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_B = BackendComponent
BACKENDS = (
    *(_B.CPU, _B.CUDA, _B.XLA, _B.MPS, _B.XPU, _B.HPU),
    *(_B.Lazy, _B.MTIA, _B.MAIA, _B.PrivateUse1, _B.Meta),
)


def redispatch_below_autograd(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Calls the operator's kernel below the Autograd keys; its results record no gradient."""
    op.redispatch_boxed(keys & AFTER_AUTOGRAD_KEYSET, stack)


_KERNEL = KernelFunction.from_boxed(redispatch_below_autograd)

FALLBACKS = {
    DispatchKey.AutogradOther: _KERNEL,
    **{to_runtime_key(DispatchKey.AutogradFunctionality, b): _KERNEL for b in BACKENDS},
}
