"""Kernels for the key Autograd made of a function that goes back: ``register_autograd``.

Mirrors ``torch/_library/autograd.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.autograd.context import Context
from opdispatch.autograd.node import Edge, Facts, Gradients, Node, next_number
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.errors import AutogradError, RegistrationError
from opdispatch.function_schema import FunctionSchema
from opdispatch.functionalities.autograd import (
    BELOW,
    edges_of,
    flat_list,
    go_below_autograd,
    requires_gradients,
    set_history,
)
from opdispatch.functionalities.derivative import title_of
from opdispatch.functionalities.derivative_kernel import FindOperator
from opdispatch.grad_mode import AUTOGRAD_STATE, stop_recording
from opdispatch.local_dispatch_key_set import LOCAL_STATE
from opdispatch.tensor import Tensor

Backward = Callable[..., Any]
SetupContext = Callable[..., Any]


class OperatorContext(Context):
    """``ctx`` of an operator, whose arguments may be plain arrays: each is kept as a tensor."""

    _edges: Sequence[Edge | None]
    _widths: Sequence[int | None] | None = None
    """Of each positional argument, how many tensors a list has, and None for what is no list. Not
    needed where no argument is one."""

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        """Whether each positional argument has a gradient that is wanted; of a list, a list."""
        flags = [edge is not None for edge in self._edges]
        if self._widths is None:
            return tuple(flags)
        left = iter(flags)
        return tuple(
            next(left) if width is None else [next(left) for _ in range(width)]
            for width in self._widths
        )

    @staticmethod
    def _kept(value: Any) -> Any:
        return _as_saved(value)


class RegisteredNode(Node):
    """A call of an operator whose derivative was registered."""

    _results: Sequence[Any] = (None,)
    """For each result, (shape, dtype, device); of a list of tensors, a list of such. None for the
    only one: where it has no gradient, nothing goes back."""

    def __init__(  # calls are many: that of the base takes its time
        self,
        schema: FunctionSchema,
        backward: Backward,
        context: OperatorContext,
        edges: Sequence[Edge | None],
        facts: Sequence[Facts | None],
    ) -> None:
        self.edges, self.facts, self.number = edges, facts, next_number()
        self._schema, self._backward, self._context = schema, backward, context

    @property
    def name(self) -> str:
        """The operator's name, as of a derivative made of formulas."""
        return title_of(self._schema)

    def keep(self, results: Sequence[Any]) -> None:
        """Makes results what this node has made. Keeps what the context saves, and what zeros for
        each result are made of."""
        flat = flat_list(results)
        for number, each in enumerate(flat):
            if isinstance(each, Tensor):
                set_history(each, self, number, ())
        self.num_results = len(flat)
        self._results = [
            [_facts(each) for each in result] if isinstance(result, list) else _facts(result)
            for result in results
        ]
        self._context.keep(flat)

    def apply(self, grads: list[Any]) -> Gradients:
        """Calls ``backward``."""
        left = iter(grads)
        given = [
            [self._given(next(left), each) for each in facts]
            if isinstance(facts, list)
            else self._given(next(left), facts)
            for facts in self._results
        ]
        found = self._context.call(self, self._backward, given)
        return self._checked(found if isinstance(found, tuple) else (found,))

    def _given(self, grad: Any, facts: Any) -> Any:
        if grad is not None or facts is None or not self._context.materializes:
            return grad
        from opdispatch.autograd.engine import namespace

        shape, dtype, device = facts
        return namespace().zeros(shape, dtype=dtype, device=device)

    def _checked(self, found: tuple[Any, ...]) -> Gradients:
        """The gradients one by one. Raises AutogradError for too many, too few, or others."""
        positional = [a for a in self._schema.arguments if not a.kwarg_only]
        arguments = [a.name for a in positional]
        # PyTorch hands over no trailing arguments that have their default, and asks for as many.
        if 0 < len(found) < len(arguments):
            left = positional[len(found) :]
            if all(a.has_default and not a.type.dispatches for a in left):
                found = (*found, *[None] * len(left))
        while len(found) > len(arguments) and found[-1] is None:
            found = found[:-1]
        if len(found) != len(arguments):
            raise self._error(
                f"returned {len(found)} gradients; expected {len(arguments)}, one for each of "
                f"({', '.join(arguments)})"
            )
        flat: list[Any] = []
        widths = self._context._widths or [None] * len(arguments)
        for argument, width, gradient in zip(arguments, widths, found, strict=True):
            each = [gradient]
            if width is not None:
                each = [None] * width if gradient is None else gradient
                if not isinstance(each, list | tuple) or len(each) != width:
                    raise self._error(
                        f"returned for {argument!r} no list of {width} gradients, one for each "
                        "tensor that was given, or None"
                    )
            for one in each:
                place = len(flat)
                if one is not None and not isinstance(one, Tensor):
                    raise self._error(
                        f"returned for {argument!r} a {type(one).__name__}; expected a Tensor or "
                        "None"
                    )
                if one is not None and self.facts[place] is None and not self._is_tensor(argument):
                    raise self._error(f"returned a gradient for {argument!r}, which is no tensor")
                flat.append(one)
        return flat

    def _is_tensor(self, argument: str) -> bool:
        return any(a.name == argument and a.type.dispatches for a in self._schema.arguments)

    def _error(self, message: str) -> AutogradError:
        name = str(self._schema.name)
        return AutogradError(f"the backward of {name} {message}", operator=name)

    def release(self) -> None:
        """Lets go of the tensors that were saved."""
        self._context.release()


def make_registered_kernel(
    schema: FunctionSchema,
    backward: Backward,
    setup_context: SetupContext | None,
    operator: FindOperator,
) -> Callable[..., Any]:
    """A kernel for the key Autograd of ``operator()``, to be registered ``with_keyset``.

    Raises RegistrationError for operators that write, give views or nothing, or whose keyword-only
    arguments are tensors, as PyTorch does.
    """
    _check_schema(schema)
    has_keyword_only = any(a.kwarg_only for a in schema.arguments)
    has_lists = any("[" in str(a.type) for a in schema.arguments)
    is_one = len(schema.returns) == 1

    def below(keys: DispatchKeySet, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        token = go_below_autograd()  # as PyTorch, whether or not the call is recorded
        try:
            return operator().redispatch(BELOW[keys.bits], *args, **kwargs)
        finally:
            LOCAL_STATE.reset(token)

    def kernel(keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if not requires_gradients(args):
            return below(keys, args, kwargs)
        given: Sequence[Any] = flat_list(args) if has_lists else args
        edges, facts = edges_of(given)
        context = OperatorContext()
        context._edges = edges
        if has_lists:
            context._widths = [len(each) if isinstance(each, list) else None for each in args]
        node = RegisteredNode(schema, backward, context, edges, facts)
        token = stop_recording()
        try:
            result = below(keys, args, kwargs)
            results: Sequence[Any]
            if is_one:
                output = _as_tensors(result, given)
                results = (output,)
            else:
                results = [_as_tensors(each, given) for each in result]
                output = tuple(results)
            if setup_context is None:
                pass
            elif has_keyword_only:
                setup_context(ctx=context, inputs=args, keyword_only_inputs=kwargs, output=output)
            else:
                setup_context(ctx=context, inputs=args, output=output)
        finally:
            AUTOGRAD_STATE.reset(token)
        if is_one and type(output) is Tensor:  # what ``node.keep`` does, for most operators
            set_history(output, node, 0, ())
            context.keep(results)
        else:
            node.keep(results)
        return output

    kernel.__name__ = kernel.__qualname__ = title_of(schema)
    return kernel


def _check_schema(schema: FunctionSchema) -> None:
    named = [a.name for a in schema.arguments if a.kwarg_only and a.type.dispatches]
    reason = ""
    if schema.is_mutable:
        reason = "it writes to its arguments"
    elif any(returned.alias_info is not None for returned in schema.returns):
        reason = "it gives views of its arguments"
    elif not schema.returns:
        reason = "it returns nothing"
    elif named:
        reason = f"its keyword-only argument {named[0]!r} is a tensor"
    if reason:
        raise RegistrationError(
            f"a backward cannot be registered for {schema.name}: {reason}",
            hint="register a kernel for Autograd",
            operator=str(schema.name),
        )


def _facts(result: Any) -> Any:
    return (result.shape, result.dtype, result.device) if isinstance(result, Tensor) else None


def _as_saved(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    if find_key_bits(value) is None:
        raise AutogradError(
            f"save_for_backward keeps tensors, not {type(value).__name__}",
            hint="make it an attribute of the context",
        )
    return Tensor(value)  # an argument that was given as a plain array


def _as_tensors(result: Any, given: Sequence[Any]) -> Any:
    """A result, or a list of them, that can have a history: arguments as other tensors."""
    if isinstance(result, Tensor):
        for each in given:
            if each is result:
                return result.detach()
        return result
    if isinstance(result, list):
        return [_as_tensors(each, given) for each in result]
    return Tensor(result) if hasattr(result, "dtype") and hasattr(result, "shape") else result
