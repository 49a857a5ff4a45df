"""``Function``: a differentiable function with user-defined ``forward`` and ``backward``.

Mirrors ``torch/autograd/function.py`` and ``torch/csrc/autograd/custom_function.cpp``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.autograd_meta import MADE_IN_FUNCTION, MADE_UNDER_NO_GRAD, view_of
from opdispatch.autograd.context import Context
from opdispatch.autograd.function_node import DelayedError, FunctionNode
from opdispatch.autograd.inference_tensor import is_inference
from opdispatch.autograd.inplace_writes import check_inplace, rebase_history
from opdispatch.autograd.node import Node
from opdispatch.autograd.variable import (
    DIFFERENTIABLE_KINDS,
    Variable,
    counter_of,
    meta_of,
)
from opdispatch.autograd.view_nodes import view_of_itself
from opdispatch.errors import ArgumentError, AutogradError, TransformError
from opdispatch.local_state.grad_mode import is_grad_enabled, no_grad


class FunctionContext(Context):
    """``ctx`` of a ``Function``."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        """Whether the gradient of each argument is needed."""
        self._constant: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()

    def mark_dirty(self, *tensors: Any) -> None:
        """Mark arguments that ``forward`` has written to in place; each must be returned.

        Their versions are incremented. Raises ArgumentError for anything but a tensor.
        """
        self._dirty = _only_tensors(tensors, "mark_dirty")

    def mark_non_differentiable(self, *results: Any) -> None:
        """Mark results as non-differentiable. Raises ArgumentError for anything but a tensor."""
        self._constant = _only_tensors(results, "mark_non_differentiable")

    def is_constant(self, result: Any) -> bool:
        """Return whether the result was marked as non-differentiable."""
        return any(result is each for each in self._constant)

    def is_dirty(self, result: Any) -> bool:
        """Return whether the result was marked as written to."""
        return any(result is each for each in self._dirty)

    def count_writes(self, results: Sequence[Any], name: str) -> None:
        """Increment the versions of dirty tensors. Raises AutogradError for one that was not
        returned."""
        for each in self._dirty:
            if not any(each is result for result in results):
                raise AutogradError(
                    f"{name}.forward has marked a tensor of shape {list(each.shape)} as dirty and "
                    "not returned it",
                    hint="return each tensor passed to mark_dirty",
                )
            if not is_inference(each):  # a plain array has no version
                counter_of(each).value += 1


class Function:
    """Base class of differentiable functions with static methods ``forward`` and ``backward``.

    ``cls.apply(*args)`` calls ``forward(ctx, *args)`` or, if the class defines ``setup_context``,
    ``forward(*args)`` and ``setup_context(ctx, inputs, output)``, and records a single node
    whatever operators they call. ``backward(ctx, *grads)`` receives a gradient for each result and
    returns one for each argument, None for arguments that are not tensors. Like
    ``torch.autograd.Function``, but without support for ``vmap`` and ``jvp``; register an operator
    for those.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the results: a tensor, or a tuple of tensors and other values."""
        raise NotImplementedError("a Function must define a static method forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the values that ``backward`` needs."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the arguments."""
        raise NotImplementedError("a Function must define a static method backward")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function and record its node.

        Keyword arguments and defaults are supported for classes with ``setup_context``. Raises
        AutogradError for results that cannot be recorded, and TransformError within a function
        transform.
        """
        has_setup = cls.setup_context is not Function.setup_context
        if has_setup:
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        if kwargs:
            raise TypeError(
                f"{cls.__name__}.apply takes no argument by the name {next(iter(kwargs))!r}"
            )
        if any(isinstance(getattr(each, "array", None), LevelArray) for each in args):
            raise TransformError(
                f"{cls.__name__}.apply cannot be called in a function that is transformed: its "
                "backward is not an operator",
                hint="register an operator, with register_autograd and register_vmap",
            )
        needs = tuple(isinstance(each, Variable) and each.requires_grad for each in args)
        context = FunctionContext(needs)
        is_recorded = is_grad_enabled() and any(needs)
        node = FunctionNode(cls, context, args) if is_recorded else None
        with no_grad():
            if has_setup:
                output = cls.forward(*args)
                cls.setup_context(context, args, output)
            else:
                output = cls.forward(context, *args)
        given = output if isinstance(output, tuple) else (output,)
        context.count_writes(given, cls.__name__)
        results = _wrapped(given, args, context, node)
        if node is not None:
            # An argument that is returned unchanged was saved as an argument, not as a result.
            savable = [
                new if any(old is each for each in args) else old
                for old, new in zip(given, results, strict=True)
            ]
            node.keep(results, savable)
        return tuple(results) if isinstance(output, tuple) else results[0]


def _wrapped(
    given: Sequence[Any], args: Sequence[Any], context: FunctionContext, node: FunctionNode | None
) -> list[Any]:
    """Attach the results of ``forward`` to the node. Raises AutogradError for an unsupported
    write."""
    results: list[Any] = []
    for number, result in enumerate(given):
        places = [place for place, each in enumerate(args) if each is result]
        before = [place for place in range(number) if given[place] is result and not places]
        if not isinstance(result, Variable):
            results.append(result)
        elif before:  # the same tensor twice: its gradient is that of the last position
            again = results[before[0]]
            if (meta := again.autograd_meta) is not None and meta.edge == (node, before[-1]):
                meta.edge = (node, number)
            results.append(again)
        elif (
            node is None
            or context.is_constant(result)
            or result.array.dtype.kind not in DIFFERENTIABLE_KINDS
        ):
            results.append(_constant(result, bool(places) and not context.is_dirty(result)))
        elif places and context.is_dirty(result):
            check_inplace(result)
            if view_of(result) is not None and len(given) > 1:
                raise AutogradError(
                    f"{node.name} is of a Function that wrote to a view and returned "
                    f"{len(given)} results; expected that view alone",
                    hint="give it a copy of the view",
                )
            rebase_history(result, node, number, places[0])
            results.append(result)
        else:
            results.append(_made_by(node, number, result, is_argument=bool(places)))
    return results


def _constant(result: Any, is_argument: bool) -> Any:
    """Return a non-differentiable result; an argument that was not written to is detached first.

    A view of an argument behaves like one made under ``no_grad``, as in PyTorch.
    """
    if result.requires_grad:
        return result if view_of(result) is not None and not is_argument else result.detach()
    return view_of_itself(result, MADE_UNDER_NO_GRAD) if is_argument else result


def _made_by(node: Node, number: int, result: Any, *, is_argument: bool = False) -> Any:
    """Return a result as an output of a node, in place of any history it has.

    If it shares memory with another tensor, it cannot be written to: the effect of such a write on
    the user-defined gradient is unknown.
    """
    view = view_of(result)
    if is_argument or (result.requires_grad and view is not None):
        result = view_of_itself(result, MADE_IN_FUNCTION)
    elif result.requires_grad:
        result = result.detach()
    elif view is not None:
        view.made_by = MADE_IN_FUNCTION
    meta_of(result).edge = (node, number)
    result.requires_grad_flag = True
    return result


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a ``backward`` that cannot be differentiated itself, such as one that uses NumPy.

    It is called under ``no_grad``. A second backward pass through its results raises AutogradError
    if one of its incoming gradients requires gradients; otherwise its results are constants.
    Equivalent to ``torch.autograd.function.once_differentiable``.
    """

    @functools.wraps(backward)
    def differentiable_once(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            found = backward(ctx, *grads)
        recorded = any(isinstance(each, Variable) and each.requires_grad for each in grads)
        if not recorded or not is_grad_enabled():
            return found
        listed = found if isinstance(found, tuple) else (found,)
        node = DelayedError(
            "the backward pass reaches a second time a function whose backward is marked with "
            "@once_differentiable",
            len(listed),
        )
        return tuple(
            each if each is None else _made_by(node, number, each.detach())
            for number, each in enumerate(listed)
        )

    return differentiable_once


def _only_tensors(values: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    for each in values:
        if not isinstance(each, Variable):
            raise ArgumentError(f"{what} takes tensors, not {type(each).__name__}")
    return values
