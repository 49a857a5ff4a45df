"""Tracing of operators, while no trace is under way: the call is made once more.

As in ``TraceTypeManual.cpp`` of PyTorch, whose fallback records the call where there is a trace,
and then calls the operator by its arguments, not by the keys that are left. No trace can be
under way here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.kernel_function import KernelFunction

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle


def call_untraced(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Calls the operator.

    Raises NoKernelError if that call arrives here again and again, where PyTorch runs out of
    stack: the key is meant to be excluded by whoever starts a trace.
    """
    try:
        op.call_boxed(stack)
    except RecursionError:
        if not op.dispatch_keys(stack).has(DispatchKey.Tracer):
            raise
        what = f"{op.name} arrived at Tracer over and over, and no trace is under way"
        raise op.no_kernel_error("Tracer", what) from None


FALLBACKS = {DispatchKey.Tracer: KernelFunction.from_boxed(call_untraced)}
