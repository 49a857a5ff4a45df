"""Forward mode of an operator that has a backward formula but no forward-mode rule.

The backward pass is linear in the incoming gradients ``u``, and differentiating it with respect to
``u`` gives the forward derivative:

    f(x)  ->  u -> J(x)^H u  ->  v -> J(x) v

The call is therefore recorded at one level and its backward pass at a second; the backward pass of
the second applies the tangents. ``u`` may be any value, so it is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import AutogradError
from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.forward_rule import ForwardRule
from opdispatch.functorch.grad_transform import Recorded
from opdispatch.functorch.pytree import leaves
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


class DoubleBackward(ForwardRule):
    """A forward-mode rule that runs two backward passes."""

    def push(
        self,
        op: OperatorHandle,
        args: Sequence[Any],
        results: Sequence[Any],
        tangents: Sequence[Any],
    ) -> Sequence[Any]:
        """Return the tangents of the results.

        Raises AutogradError for an operator that is not differentiable or writes to its arguments.
        """
        has_backward = any(str(each.key).startswith("Autograd") for each in op.kernels())
        if self.written or not has_backward:
            raise AutogradError(
                f"{op.name} has no forward-mode derivative, but was called with a tangent",
                hint="register one with opdispatch.register_jvp",
                operator=str(op.name),
            )
        places = [(n, k) for n, each in enumerate(tangents) for k in _moving(each)]
        primals = [args[n] if k is None else args[n][k] for n, k in places]
        speeds = [tangents[n] if k is None else tangents[n][k] for n, k in places]

        def call(*given: Any) -> Any:
            stack = [list(each) if type(each) is list else each for each in args]
            for (n, k), each in zip(places, given, strict=True):
                if k is None:
                    stack[n] = each
                else:
                    stack[n][k] = each
            positional, named = op.call_signature.split(stack)
            return op(*positional, **named)

        numbers = tuple(range(len(primals)))
        recorded = Recorded(call, tuple(primals), {}, numbers, False, "jvp")
        ends = leaves(recorded.output)
        dependent = [
            end
            for end in ends
            if type(end) is Tensor and end.requires_grad and end.dtype.kind in DIFFERENTIABLE_KINDS
        ]
        if not dependent:
            return [None] * len(results)
        zeros = tuple(array_namespace().zeros_like(unwrap_dead(end)) for end in dependent)
        back = Recorded(
            lambda *given: recorded.gradients(dependent, given),
            zeros,
            {},
            tuple(range(len(zeros))),
            False,
            "jvp",
        )
        found = iter(back.gradients(leaves(back.output), speeds))
        moved = [next(found) if any(end is each for each in dependent) else None for end in ends]
        return _like(results, iter(moved))


def _moving(tangent: Any) -> list[int | None]:
    """Return the indices of the tensors with tangents in a list, or [None] for a single tensor."""
    if type(tangent) is list:
        return [k for k, each in enumerate(tangent) if each is not None]
    return [] if tangent is None else [None]


def _like(results: Sequence[Any], moved: Any) -> list[Any]:
    """Group the tangents in lists in the same way as the results."""
    return [
        _like(each, moved) if type(each) is list else next(moved) if is_tensor(each) else None
        for each in results
    ]
