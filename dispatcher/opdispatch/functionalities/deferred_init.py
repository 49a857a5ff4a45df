"""The key DeferredInit: records calls, and runs them on fake tensors.

PyTorch keeps the key for torchdistX, whose ``deferred_init.cc`` this mirrors. It comes before
Autograd, Autocast and composite kernels, so that what is recorded is what was called.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import FakeArray, find_key_bits
from opdispatch.functionalities.recorded_call import RecordedCall
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)
from opdispatch.tensors.generator import default_generator_states
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BELOW = DispatchKeySet.full_after(DispatchKey.DeferredInit)
_DEFERRED = DispatchKeySet.of(DispatchKey.DeferredInit)
_FAKE = DispatchKeySet.of(DispatchKey.Fake)

IS_RECORDING: ContextVar[bool] = ContextVar("opdispatch_is_recording", default=False)
"""Whether this task is in ``deferred_init``."""


def record_call(keys: DispatchKeySet, op: OperatorHandle, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call: the backend fallback for DeferredInit, registered ``with_keyset``.

    A call whose tensors all have elements runs at once instead.
    """
    signature = op.call_signature
    stack = signature.bind(args, kwargs)
    tensors = [each for each in _flat(stack) if each is not None and _is_tensor(each)]
    is_deferred = IS_RECORDING.get() and (not tensors or any(map(_is_fake, tensors)))
    included, excluded = local_dispatch_key_set()
    included -= _DEFERRED if is_deferred else _DEFERRED | _FAKE
    below = keys & _BELOW if is_deferred else (keys & _BELOW) - _FAKE
    if not is_deferred:
        with ForceDispatchKeyGuard(included, excluded | _DEFERRED):
            op.redispatch_boxed(below, stack)
        return signature.unbox_returns(stack)
    call = RecordedCall(op, stack)
    before = default_generator_states()
    with ForceDispatchKeyGuard(included, excluded | _DEFERRED):
        op.redispatch_boxed(below, stack)
    call.drawn = {
        name: before.get(name, type(state)(state.seed, 0))
        for name, state in default_generator_states().items()
        if state != before.get(name)
    }
    call.keep(stack)
    return signature.unbox_returns(stack)


def _flat(stack: list[Any]) -> list[Any]:
    return [each for value in stack for each in (value if isinstance(value, list) else [value])]


def _is_tensor(value: Any) -> bool:
    return find_key_bits(value) is not None


def _is_fake(value: Any) -> bool:
    return isinstance(value.array if isinstance(value, Tensor) else value, FakeArray)
