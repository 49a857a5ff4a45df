"""The key Tracer: the task's traces record the call, which continues below.

As the fallback in ``TraceTypeManual.cpp`` of PyTorch: a call is noted down
with what it is given, the operator is called with tracing switched off, and what it returns is
noted down. The key is below Autocast, so that casts are calls of their own, and above Autograd and
all composite kernels, so that their operators are seen as they were called.

Where no trace is under way the operator is called once more, by its arguments and not by the keys
that are left, as PyTorch's fallback does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.boxing.boxing import split_without_defaults
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.tracing_state import not_tracing, traces

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BELOW = DispatchKeySet.full_after(DispatchKey.Tracer)


def trace_call(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run the call and record it in the task's traces; without any, ``call_untraced``."""
    found = traces()
    if not found:
        call_untraced(op, stack)
        return
    signature = op.call_signature
    args, kwargs = split_without_defaults(signature, stack)
    finish = [
        recorder.begin(str(op.name), op, args, kwargs)
        for recorder in found
        if not recorder.pre_dispatch and not recorder.is_over
    ]
    with not_tracing():
        op.redispatch_boxed(keys & _BELOW, stack)
    result = signature.unbox_returns(stack)
    for each in finish:
        each(result)


def call_untraced(op: OperatorHandle, stack: list[Any]) -> None:
    """Call the operator.

    Raises NoKernelError if that call arrives here again and again, where PyTorch runs out of
    stack: the key is included by a trace alone.
    """
    try:
        op.call_boxed(stack)
    except RecursionError:
        if not op.dispatch_keys(stack).has(DispatchKey.Tracer):
            raise
        what = f"{op.name} arrived at Tracer over and over, and no trace is under way"
        raise op.no_kernel_error("Tracer", what) from None


FALLBACKS = {DispatchKey.Tracer: KernelFunction.from_boxed(trace_call)}
