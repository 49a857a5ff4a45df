"""The keys of nested function transforms: a call goes to the topmost level, and on to the next.

See ``opdispatch/functorch/dynamic_layer.py``. Without a transform there is no level, and these
keys are an error, as in PyTorch (``functorch/DynamicLayer.cpp``, ``TensorWrapper.cpp``); there, at
the back mode, the process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import NoKernelError
from opdispatch.functorch.dynamic_layer import (
    TOP,
    Frame,
    process_at_top,
    send_down,
)
from opdispatch.functorch.jvp_layer import DualLayer
from opdispatch.functorch.operator_rules import NOT_TAKEN, OperatorRules
from opdispatch.functorch.tensor_wrapper import all_alive
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_K = DispatchKey


def to_top_level(op: OperatorHandle, keys: DispatchKeySet) -> Callable[..., Any]:
    """Return a kernel that passes calls of the operator to the topmost level.

    It raises NoKernelError outside all levels.
    """
    rules = OperatorRules(op)

    def hand_over(*args: Any) -> Any:
        frame = TOP.get() or _frame(op, _K.FuncTorchDynamicLayerFrontMode)
        layer, now = frame.layer, LOCAL_STATE.get()
        known = layer.served
        if known is not None and known[0] is now and known[1] is frame:
            below, processing = known[2], known[3]
        else:
            below, processing = layer.serve_in(frame, now)
        if below is not None:
            result = layer.take(rules, frame, below, args)
            if result is not NOT_TAKEN:
                return result
        return process_at_top(processing, rules, all_alive(args))

    return _with_keywords(hand_over, rules)


def to_next_level(op: OperatorHandle, keys: DispatchKeySet) -> Callable[..., Any]:
    """Return a kernel that passes calls from the topmost level to the next one.

    It raises NoKernelError outside all levels.
    """
    rules = OperatorRules(op)

    def hand_down(*args: Any) -> Any:
        frame = TOP.get() or _frame(op, _K.FuncTorchDynamicLayerBackMode)
        return send_down(frame, rules, args)

    return _with_keywords(hand_down, rules)


def _with_keywords(function: Callable[..., Any], rules: OperatorRules) -> Callable[..., Any]:
    """Return ``function``, which takes all arguments by position, with keyword-only arguments."""
    names = rules.signature.keyword_only_names
    if not names:
        return function
    return lambda *args, **named: function(*args, *[named[name] for name in names])


def without_wrappers(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Call the operator with the tensors inside the wrappers of levels that have ended.

    In forward mode, call an operator without a forward rule, whose kernel may call others. Raises
    NoKernelError if there are neither wrappers nor a level of forward mode.
    """
    frame = TOP.get()
    if frame is not None and isinstance(frame.layer, DualLayer):
        # The call continues as it came, without a forward rule.
        rules, processing = OperatorRules(op), Frame(frame.layer, frame.below, LOCAL_STATE.get())
        result = process_at_top(processing, rules, all_alive(stack))
        stack[:] = rules.signature.box_returns(result)
        return
    unwrapped = all_alive(stack)
    if all(map(_is_same, unwrapped, stack)):
        raise _refusal(
            op, _K.FuncTorchGradWrapper, "no argument is the wrapper of a finished transform"
        )
    stack[:] = unwrapped
    op.call_boxed(stack)


def _is_same(new: Any, old: Any) -> bool:
    if isinstance(new, list):
        return all(map(_is_same, new, old))
    return new is old


def _frame(op: OperatorHandle, key: DispatchKey) -> Frame:
    frame = TOP.get()
    if frame is None:
        raise _refusal(op, key, "no function transform is under way")
    return frame


def _refusal(op: OperatorHandle, key: DispatchKey, missing: str) -> NoKernelError:
    return op.no_kernel_error(str(key), f"{op.name} arrived at {key}, and {missing}")


FALLBACKS = {
    _K.FuncTorchDynamicLayerFrontMode: KernelFunction.from_operator(to_top_level),
    _K.FuncTorchDynamicLayerBackMode: KernelFunction.from_operator(to_next_level),
    _K.FuncTorchGradWrapper: KernelFunction.from_boxed(without_wrappers),
}
