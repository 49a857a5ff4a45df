"""The level of ``jvp``, ``jacfwd`` and ``linearize``: propagate tangents along with values.

The operator is called with the values at the level below; its forward rule then computes the
tangents of the results, also at the level below, so that other transforms there, such as ``vmap``
or ``grad``, apply to both. A rule is a kernel for FuncTorchGradWrapper
(``functionalities/forward_derivative.py``).

Mirrors ``JvpInterpreterPtr`` of ``functorch/ADInterpreters.cpp``; there, the rules are in the
kernels for Autograd.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.autograd.view_nodes import shares_elements, with_room_for
from opdispatch.errors import TransformError
from opdispatch.functorch.aliased_return import original_of_write
from opdispatch.functorch.batched_tensor import as_tensor, is_tensor, tensor_over
from opdispatch.functorch.double_backward import DoubleBackward
from opdispatch.functorch.dual_tensor import DualArray, dual_of, make_dual
from opdispatch.functorch.dynamic_layer import (
    TOP,
    DynamicLayer,
    Frame,
    bits_off_but_for,
    is_recorded_outside,
)
from opdispatch.functorch.forward_rule import ForwardRule, Push
from opdispatch.functorch.operator_rules import NOT_TAKEN, OperatorRules
from opdispatch.functorch.tensor_wrapper import WrappedArray, unwrap_dead
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET, DispatchKeySet
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, no_grad
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_RULE = DispatchKeySet.of(DispatchKey.FuncTorchGradWrapper)
_OFF = bits_off_but_for(AUTOGRAD_KEYSET.bits)


class DualLayer(DynamicLayer):
    """Base class of forward-mode levels; subclasses decide when tangents are computed."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._recorded_before = is_recorded_outside()

    @abstractmethod
    def push(
        self, step: Push, known: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the tangents of ``results``: ``step(*known, tangents)``."""

    def take(
        self, rules: OperatorRules, frame: Frame, below: LocalState, args: Sequence[Any]
    ) -> Any:
        """Apply the operator's forward rule, unless an autograd graph at this level comes first.

        Some backward formulas record calls themselves, and differentiate them at once.
        """
        for value in args:
            if type(value) is Tensor:
                if value.requires_grad_flag and type(value.array) is DualArray:
                    return NOT_TAKEN
            elif type(value) is list and any(map(_is_recorded, value)):
                return NOT_TAKEN
        rule = rules.forward_rule
        if rule is None:
            rules.op.redispatch_boxed(_RULE, stack := [*args])
            return rules.signature.unbox_returns(stack)
        local, top = LOCAL_STATE.set(below), TOP.set(frame.below)
        try:
            return self.carry(rules.op, args, rule)
        finally:
            TOP.reset(top)
            LOCAL_STATE.reset(local)

    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call an operator so that composite operators decompose.

        Operators that are not composite arrive at ``send_to_next``.
        """
        return self.call_with(0, _OFF, rules, args)

    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Propagate tangents through a call that was not decomposed."""
        rule = rules.forward_rule or DoubleBackward(rules.schema)
        return self.carry(rules.op, args, rule)

    def carry(self, op: OperatorHandle, given: Sequence[Any], rule: ForwardRule) -> Any:
        """Call the operator with values and return its results with their tangents.

        The level below is current. Raises TransformError if the operator writes to a captured
        tensor, and any error of the forward rule.
        """
        args = [*given]
        tangents: list[Any] | None = None
        for place in rule.tensors:
            value = args[place]
            if type(value) is Tensor:
                array = value.array
                if isinstance(array, WrappedArray) and array.layer is not self:
                    args[place] = value = unwrap_dead(value)
                    array = getattr(value, "array", None)
                if type(array) is DualArray and array.layer is self:
                    args[place] = array.value
                    if (tangent := array.tangent) is not None:
                        if tangents is None:
                            tangents = [None] * len(args)
                        tangents[place] = tangent
            elif type(value) is list:
                args[place], found = self._unwrapped(value)
                if any(each is not None for each in found):
                    tangents = tangents or [None] * len(args)
                    tangents[place] = found
        if AUTOGRAD_STATE.get().inference_mode:  # disables forward mode, too
            tangents = None
        carry = self._write if rule.written else self._compute
        if self._recorded_before:
            return carry(op, given, rule, args, tangents)
        with no_grad():
            return carry(op, given, rule, args, tangents)

    def _unwrapped(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the values and the tangents of a list."""
        alive = list(map(unwrap_dead, values))
        duals = [dual_of(each, self) for each in alive]
        below = [
            each if dual is None else dual.value for each, dual in zip(alive, duals, strict=True)
        ]
        return below, [None if dual is None else dual.tangent for dual in duals]

    def _compute(
        self,
        op: OperatorHandle,
        given: Sequence[Any],
        rule: ForwardRule,
        args: list[Any],
        tangents: Any,
    ) -> Any:
        result = rule.call(op, args) if rule.has_keywords else op(*args)
        is_one = type(result) is Tensor
        if is_one:
            results = [result]
            has_derivative = result.array.dtype.kind in DIFFERENTIABLE_KINDS
        else:
            results = op.call_signature.box_returns(result)
            has_derivative = _has_derivative(results)
        moved: Sequence[Any] | None = None
        if has_derivative and tangents is not None:
            moved = self.push(rule.push, (op, args, results), tangents, results)
        if is_one and not rule.gives_views:
            return tensor_over(DualArray(self, result, moved[0] if moved else None))
        duals = [self._dual(each, moved[n] if moved else None) for n, each in enumerate(results)]
        if rule.gives_views:
            self._note_views(op, given, args, duals)
        return op.call_signature.unbox_returns(duals)

    def _dual(self, value: Any, tangent: Any) -> Any:
        if type(value) is Tensor:
            return tensor_over(DualArray(self, value, tangent))
        if type(value) is list:
            moved = tangent or [None] * len(value)
            return [self._dual(*pair) for pair in zip(value, moved, strict=True)]
        return make_dual(self, value, tangent) if is_tensor(value) else value

    # -- views and writes: see Note [Tangents of views] -------------------------------------------

    def _note_views(
        self, op: OperatorHandle, given: Sequence[Any], args: list[Any], duals: list[Any]
    ) -> None:
        """Record which results are views of the first argument."""
        base = dual_of(unwrap_dead(given[0]), self)
        in_list = type(duals[0]) is list
        for place, each in enumerate(duals[0] if in_list else duals):
            view = dual_of(each, self)
            if view is None or not shares_elements(as_tensor(args[0]), view.value):
                continue
            if base is None:
                view.is_immutable = True
            else:
                number = place if in_list else None
                view.become_view_of(base, partial(_view_again, op, args, number))

    def _write(
        self,
        op: OperatorHandle,
        given: Sequence[Any],
        rule: ForwardRule,
        args: list[Any],
        tangents: Any,
    ) -> Any:
        """Call a mutating operator, and replace the tangents of the arguments it writes to."""
        targets = []
        for place in rule.written:
            target = dual_of(unwrap_dead(given[place]), self)
            if target is None or target.is_immutable:
                name = rule.schema.arguments[place].name
                raise TransformError(
                    f"{op.name} writes to its argument {name!r}, which is an argument of the "
                    f"function transformed by {self.name} or captured by it",
                    hint="write to a copy",
                    operator=str(op.name),
                )
            self.keep_from_write(target.origin)
            args[place] = target.value
            targets.append(target)
        results = op.call_signature.box_returns(rule.call(op, args))
        written = [target.value for target in targets]
        if tangents is not None and _has_derivative(written):
            moved = self.push(rule.push, (op, args, written), tangents, written)
            for target, tangent in zip(targets, moved, strict=True):
                self._replace_tangent(target, tangent)
        schema = rule.schema
        return op.call_signature.unbox_returns(
            [
                original_of_write(schema, n, each, args, given)
                if schema.returns[n].alias_info is not None
                else self._dual(each, None)
                for n, each in enumerate(results)
            ]
        )

    def keep_from_write(self, root: DualArray) -> None:
        """Prepare for a write to the value of ``root`` or of its views; a no-op by default."""

    def _replace_tangent(self, target: DualArray, tangent: Any) -> None:
        root = target.origin
        if target.root is not None:
            known, both = (target, root.value), (root.tangent, tangent)
            [tangent] = self.push(_placed, known, both, [root.value])
        root.tangent = tangent
        for view in root.views():
            [view.tangent] = self.push(_replayed, (view,), (tangent,), [view.value])


class JvpLayer(DualLayer):
    """A forward-mode level that computes tangents eagerly, as tensors of the level below."""

    name = "jvp"

    def push(
        self, step: Push, known: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        """Compute the tangents of ``results`` immediately."""
        return step(*known, tangents)


def _is_recorded(value: Any) -> bool:
    """Return whether a tensor of a forward-mode level requires gradients at that level."""
    if type(value) is Tensor:
        return value.requires_grad and type(value.array) is DualArray
    return type(value) is list and any(map(_is_recorded, value))


def _has_derivative(results: Sequence[Any]) -> bool:
    """Return whether a result has a floating-point or complex dtype, so that it may have a
    tangent."""
    for each in results:
        if type(each) is list:
            if _has_derivative(each):
                return True
        elif is_tensor(each) and each.dtype.kind in DIFFERENTIABLE_KINDS:
            return True
    return False


def _view_again(op: OperatorHandle, args: Sequence[Any], number: int | None, base: Any) -> Any:
    """Repeat a view operator on another base; ``number`` is the index of the result."""
    positional, named = op.call_signature.split([base, *args[1:]])
    result = op(*positional, **named)
    return result if number is None else result[number]


def _placed(view: DualArray, root_value: Any, tangents: Sequence[Any]) -> Sequence[Any]:
    """Return the tangent of a root after a write to a view, from the root's and the view's
    tangents."""
    xp = array_namespace()
    before, part = tangents
    whole = xp.zeros_like(root_value) if before is None else xp.asarray(before, copy=True)
    whole = with_room_for(whole, part)
    place = view.replay(whole)
    place[...] = 0.0 if part is None else part
    return (whole,)


def _replayed(view: DualArray, tangents: Sequence[Any]) -> Sequence[Any]:
    [root] = tangents
    return (None if root is None else view.replay(root),)
