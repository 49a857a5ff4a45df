"""``Function``: a step of the graph that is written by hand, of any code.

Mirrors ``torch/autograd/function.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch import arrays
from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.context import Context
from opdispatch.autograd.node import Gradients, Node
from opdispatch.autograd.variable import (
    DIFFERENTIABLE_KINDS,
    Variable,
    edge_of,
    facts_of,
    meta_of,
)
from opdispatch.errors import AutogradError, TransformError
from opdispatch.grad_mode import is_grad_enabled, no_grad


class FunctionContext(Context):
    """``ctx`` of a ``Function``."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        """Whether each argument has a gradient that is wanted."""
        self._constant: tuple[Any, ...] = ()

    def mark_non_differentiable(self, *results: Any) -> None:
        """Says which results have no gradient."""
        self._constant = results

    def is_constant(self, result: Any) -> bool:
        """Whether it is one of these."""
        return any(result is each for each in self._constant)


class Function:
    """A base for classes with two static methods, ``forward`` and ``backward``.

    ``cls.apply(*args)`` calls ``forward(ctx, *args)``, or, of a class with a ``setup_context``,
    ``forward(*args)`` and ``setup_context(ctx, inputs, output)``: one step of the graph, whatever
    they call. ``backward(ctx, *grads)`` is given a gradient for each result and returns one for
    each argument, None for what is no tensor. As ``torch.autograd.Function``, but without
    ``mark_dirty``, ``vmap`` and ``jvp``: arguments are not written to, and transforms are refused.
    For these, register an operator.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        """Calculates the results: a tensor, or a tuple of tensors and others."""
        raise NotImplementedError("a Function needs a static method forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps what ``backward`` needs."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the arguments."""
        raise NotImplementedError("a Function needs a static method backward")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls it. Raises AutogradError for what cannot be recorded, and TransformError."""
        if any(isinstance(getattr(each, "array", None), LevelArray) for each in args):
            raise TransformError(
                f"{cls.__name__}.apply cannot be called in a function that is transformed: its "
                "backward is no operator",
                hint="register an operator, with register_autograd and register_vmap",
            )
        needs = tuple(isinstance(each, Variable) and each.requires_grad for each in args)
        context = FunctionContext(needs)
        is_recorded = is_grad_enabled() and any(needs)
        node = FunctionNode(cls, context, args) if is_recorded else None
        with no_grad():
            if cls.setup_context is Function.setup_context:
                output = cls.forward(context, *args)
            else:
                output = cls.forward(*args)
                cls.setup_context(context, args, output)
        if node is None:
            return output
        results = list(output) if isinstance(output, tuple) else [output]
        for number, result in enumerate(results):
            if not isinstance(result, Variable):
                continue
            if any(result is each for each in args):
                results[number] = result = result.detach()  # type: ignore[attr-defined]
            is_number = result.array.dtype.kind in DIFFERENTIABLE_KINDS
            if is_number and not context.is_constant(result):
                if result.requires_grad and not result.is_leaf:
                    raise AutogradError(
                        f"{cls.__name__}.forward returned a tensor with a history of its own, "
                        f"made by {result.grad_fn}",
                        hint="return a copy of it",
                    )
                meta_of(result).edge = (node, number)
                result.requires_grad_flag = True
        node.keep(results)
        return tuple(results) if isinstance(output, tuple) else results[0]


class FunctionNode(Node):
    """A call of a ``Function``."""

    def __init__(
        self, function: type[Function], context: FunctionContext, args: Sequence[Any]
    ) -> None:
        edges = tuple(edge_of(each) if isinstance(each, Variable) else None for each in args)
        facts = tuple(
            None if edge is None else facts_of(each) for edge, each in zip(edges, args, strict=True)
        )
        super().__init__(edges, facts)
        self._function, self._context = function, context
        self._results: list[Any] = []

    @property
    def name(self) -> str:
        """The class's name, as PyTorch has it."""
        return f"{self._function.__name__}Backward"

    def keep(self, results: Sequence[Any]) -> None:
        """Keeps what zeros for each result are made of, and what the context saves."""
        self.num_results = len(results)
        self._results = [_made_like(each) for each in results]
        self._context.keep(results)

    def apply(self, grads: list[Any]) -> Gradients:
        """Calls ``backward``. Raises AutogradError for too many gradients, too few, or others."""
        given = [
            self._zeros(facts) if grad is None and facts is not None else grad
            for grad, facts in zip(grads, self._results, strict=True)
        ]
        found = self._context.call(self, self._function.backward, given)
        found = list(found) if isinstance(found, tuple | list) else [found]
        while len(found) > len(self.edges) and found[-1] is None:
            found.pop()
        if len(found) != len(self.edges):
            raise AutogradError(
                f"{self._function.__name__}.backward returned {len(found)} gradients; expected "
                f"{len(self.edges)}, one for each argument"
            )
        for place, each in enumerate(found):
            if each is not None and not isinstance(each, Variable):
                raise AutogradError(
                    f"{self._function.__name__}.backward returned for argument {place} a "
                    f"{type(each).__name__}; expected a Tensor or None"
                )
        return found

    def _zeros(self, facts: Any) -> Any:
        if not self._context.materializes:
            return None
        from opdispatch.autograd.engine import namespace

        shape, dtype, device = facts
        return namespace().zeros(shape, dtype=dtype, device=device)

    def release(self) -> None:
        """Lets go of the tensors that were saved."""
        self._context.release()


def _made_like(result: Any) -> Any:
    """What zeros like a result are made of."""
    if not isinstance(result, Variable):
        return None
    shape, dtype = facts_of(result)
    return shape, dtype, arrays.device_of(result.array)
