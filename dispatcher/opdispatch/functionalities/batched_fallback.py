"""Kernels for FuncTorchBatched, for operators with and without a batching rule.

Under ``vmap``, operators with a CompositeImplicitAutograd kernel are decomposed. Others are called
in a loop over the samples, with a warning at the first call, as in PyTorch's
``functorch/BatchedFallback.cpp``; lists of tensors are supported here. View operators are rejected,
as in PyTorch.

Outside ``vmap``, tensors have no batch dimension, so calls with tensors raise an error. Calls
without tensors are redispatched with the key excluded, except for the older kind of batches.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import NoKernelError, TransformError
from opdispatch.functorch.batch_loop import call_for_each
from opdispatch.functorch.batched_tensor import BatchedArray
from opdispatch.functorch.batched_writes import check_writes
from opdispatch.functorch.batching_rule import BatchedCall, Rule, run_rule
from opdispatch.functorch.dynamic_layer import TOP, Frame, Lowered, call_without
from opdispatch.functorch.operator_rules import OperatorRules
from opdispatch.functorch.vmap_layer import VmapLayer
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.local_state.caller_frames import warn_caller
from opdispatch.local_state.local_dispatch_key_set import ExcludeDispatchKeyGuard
from opdispatch.schema.types import TENSOR, ListType

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_K = DispatchKey
_BATCHED = bits_of_key(_K.FuncTorchBatched)

_mutex = threading.Lock()  # protects _warned
_warned: set[str] = set()


class BatchingFallbackWarning(UserWarning):
    """Warning: an operator without a batching rule is called in a loop over the samples of a
    batch."""


class BatchingKernel:
    """A kernel for FuncTorchBatched that applies a batching rule.

    Levels of ``vmap`` call the rule directly, unless an observer must see each step of a call.
    """

    def __init__(self, rule: Rule) -> None:
        self.batching_rule = rule
        self.__name__ = self.__qualname__ = getattr(rule, "__name__", type(rule).__name__)

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Apply the rule if a tensor is batched at the topmost level."""
        frame, layer = _batch_of(op)
        values, dims, found = layer.unwrapped(stack)
        if not found:
            call_without(_BATCHED, op, stack)
            return
        call = BatchedCall(OperatorRules(op), layer.info, values, dims)
        with Lowered(frame):
            result = run_rule(self.batching_rule, call, layer, stack)
        stack[:] = call.rules.signature.box_returns(result)


def make_batching_kernel(rule: Rule) -> KernelFunction:
    """Return a kernel for FuncTorchBatched."""
    return KernelFunction.from_boxed(BatchingKernel(rule))


def _batch_of(op: OperatorHandle) -> tuple[Frame, VmapLayer]:
    """Return the current ``vmap`` level. Raises TransformError outside ``vmap``."""
    frame = TOP.get()
    if frame is None or not isinstance(frame.layer, VmapLayer):
        raise TransformError(
            f"{op.name} was called with a batched tensor outside of the vmap that has made it",
            hint="return it from the function, and do not keep it elsewhere",
            operator=str(op.name),
        )
    return frame, frame.layer


def call_without_rule(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Run a call without a rule: the fallback of FuncTorchBatched, see above.

    Raises TransformError, NoKernelError.
    """
    top = TOP.get()
    if top is None or not isinstance(top.layer, VmapLayer):
        if any(_is_batched(value) for value in stack):
            _batch_of(op)  # raises
        _without_batch(op, stack)
        return
    values, dims, found = top.layer.unwrapped(stack)
    if not found:
        call_without(_BATCHED, op, stack)
    elif _is_composite(op):
        op.call_boxed_for_dispatch_key(_K.Undefined, stack)
    else:
        schema = op.call_signature.schema
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            raise TransformError(
                f"{op.name} has no batching rule, and gives views of its arguments: it cannot be "
                "called for each sample",
                hint="give it a rule with opdispatch.register_vmap",
                operator=str(op.name),
            )
        check_writes(op, dims)
        _warn(str(op.name))
        with Lowered(top):
            results = call_for_each(op, top.layer.info.batch_size, values, dims, stack)
        stack[:] = [each.wrapped(top.layer) for each in results]


def _is_batched(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_batched, value))
    return type(getattr(value, "array", None)) is BatchedArray


def _is_composite(op: OperatorHandle) -> bool:
    """Return whether the operator resolves to its CompositeImplicitAutograd kernel."""
    return op.has_kernel_for_dispatch_key(_K.CompositeImplicitAutograd) and not any(
        op.has_kernel_for_dispatch_key(key)
        for key in (
            _K.Undefined,
            _K.CompositeExplicitAutograd,
            _K.CompositeExplicitAutogradNonFunctional,
        )
    )


def _warn(operator: str) -> None:
    with _mutex:
        is_first = operator not in _warned
        _warned.add(operator)
    if is_first:
        warn_caller(
            f"{operator} has no batching rule: vmap calls it for each sample, one after the other; "
            "opdispatch.register_vmap gives it a rule",
            BatchingFallbackWarning,
        )


# -- without vmap ------------------------------------------------------------------------------


def _refusal(op: OperatorHandle, key: DispatchKey, why: str) -> NoKernelError:
    return op.no_kernel_error(str(key), f"{op.name} has no batching rule, and {why}")


def refuse_batch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raise NoKernelError: the fallback of the older batches."""
    raise _refusal(op, _K.Batched, "no argument has a batch dimension to go along")


def _call_once_more(
    op: OperatorHandle, key: DispatchKey, stack: list[Any], *off: DispatchKey
) -> None:
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


def _without_batch(op: OperatorHandle, stack: list[Any]) -> None:
    _call_once_more(op, _K.FuncTorchBatched, stack, _K.FuncTorchBatched)


def call_without_nested_batch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Refuse tensors: the fallback of BatchedNestedTensor.

    Raises NoKernelError if there is a tensor.
    """
    off = (_K.FuncTorchBatched, _K.BatchedNestedTensor)
    _call_once_more(op, _K.BatchedNestedTensor, stack, *off)


FALLBACKS = {
    _K.FuncTorchBatched: KernelFunction.from_boxed(call_without_rule),
    _K.BatchedNestedTensor: KernelFunction.from_boxed(call_without_nested_batch),
    _K.Batched: KernelFunction.from_boxed(refuse_batch),
}
