"""Forward-mode derivatives of the operators in the table; most reuse the backward formulas.

An entry of the table says under ``RESULT`` how to compute the tangent of the result from the
tangents of the arguments:

    "exp": {"x": lambda grad, result: grad * conj(result), RESULT: Forward.ELEMENTWISE}
    "sum": {"x": ..., RESULT: Forward.LINEAR}
    "sort": {"x": ..., RESULT: lambda x_t, x, axis: ...}

The parameter names of a function say what it needs: ``x_t`` is the tangent of the argument ``x``,
or None without one; the others are those of backward formulas (``derivative.py``). It returns the
tangent of the result, or a list of tangents if there are several results.

Mirrors the ``result:`` lines of PyTorch's ``tools/autograd/derivatives.yaml``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.arrays.level_array import has_elements
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import AutogradError
from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.functionalities.functorch import without_wrappers
from opdispatch.functorch.dynamic_layer import TOP, Lowered
from opdispatch.functorch.forward_rule import ForwardRule
from opdispatch.functorch.jvp_layer import DualLayer
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

Find = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Any], Sequence[Any]]
"""Returns a formula's arguments, given the call's arguments, tangents, results and a gradient."""

_MATRIX = [-2, -1]


class RuleKernel:
    """A kernel for FuncTorchGradWrapper that applies a forward rule at a level of forward mode."""

    def __init__(self, rule: ForwardRule) -> None:
        self.forward_rule = rule
        self.__name__ = self.__qualname__ = f"forward mode of {rule.schema.name}"

    def __call__(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Run the call, and compute the tangents of its results at the current level, if any."""
        frame = TOP.get()
        if frame is None or not isinstance(frame.layer, DualLayer):
            without_wrappers(op, keys, stack)
            return
        with Lowered(frame):
            result = frame.layer.carry(op, stack, self.forward_rule)
        stack[:] = op.call_signature.box_returns(result)


def make_forward_kernel(schema: FunctionSchema, formulas: Formulas) -> KernelFunction:
    """Return a kernel for FuncTorchGradWrapper of an operator of that schema.

    Raises AutogradError for formulas that do not fit the schema, when it is first called.
    """
    return KernelFunction.from_boxed(RuleKernel(TableRule(schema, formulas)))


class TableRule(ForwardRule):
    """The forward rule of one entry of the table."""

    def __init__(self, schema: FunctionSchema, formulas: Formulas) -> None:
        super().__init__(schema)
        self._formulas = formulas

    def push(
        self,
        op: OperatorHandle,
        args: Sequence[Any],
        results: Sequence[Any],
        tangents: Sequence[Any],
    ) -> Sequence[Any]:
        """Return the tangents of the results. Raises AutogradError and the errors of formulas."""
        for place in self.tensors:
            if type(args[place]) is not Tensor:
                args = [dispatched(each) for each in args]
                break
        moved = self._push(op, args, tangents, results)
        if type(moved) is Tensor and type(result := results[0]) is Tensor:
            one, other = moved.array, result.array  # by far most: nothing is to be fitted
            if one.dtype == other.dtype and one.shape == other.shape:
                return [moved]
        if (type(moved) is not list and type(moved) is not tuple) or type(results[0]) is list:
            moved = [moved]
        return [_fitting(*pair) for pair in zip(moved, results, strict=True)]

    @cached_property
    def _push(self) -> Callable[..., Any]:
        """The function that computes them, made when a call first arrives."""
        forward = self._formulas[RESULT]
        if not isinstance(forward, Forward):
            return self._by_function(forward)
        make: Callable[[], Callable[..., Any]] = {
            Forward.CONSTANT: self._constant,
            Forward.ELEMENTWISE: self._elementwise,
            Forward.LINEAR: self._linear,
            Forward.MULTILINEAR: self._multilinear,
            Forward.REDUCTION: self._reduction,
            Forward.MATRIX_FUNCTION: self._matrix_function,
        }[forward]
        return make()

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {each.name: place for place, each in enumerate(self.schema.arguments)}

    @cached_property
    def _moving(self) -> list[tuple[int, Callable[..., Any], Find]]:
        """The arguments with derivatives: where they are, and their backward formulas."""
        return [
            (self._places[name], formula, self._finder(formula))
            for name, formula in self._formulas.items()
            if name != RESULT
        ]

    def _finder(self, formula: Callable[..., Any]) -> Find:
        names = list(inspect.signature(formula).parameters)
        facts: list[Callable[[Sequence[Any]], Any]] = []
        places = [self._place_of(name, facts) for name in names]
        # One itemgetter fetches all values; for fewer than two, a slice still gives a sequence.
        first = places[0] if places else 0
        pick: Callable[[Sequence[Any]], Sequence[Any]] = itemgetter(
            *places if len(places) > 1 else (slice(first, first + len(places)),)
        )

        def find(args: Any, tangents: Any, results: Any, grad: Any) -> Sequence[Any]:
            known = [grad, results, results[0], *args, *tangents]
            if facts:
                known += [fact(args) for fact in facts]
            return pick(known)

        return find

    def _place_of(self, name: str, facts: list[Callable[[Sequence[Any]], Any]]) -> int:
        """Return the index of a parameter's value; append its getter to ``facts`` if computed."""
        places, own = self._places, 3
        if name in _PLACES:
            return _PLACES[name]
        if name in places:
            return own + places[name]
        stem, _, what = name.rpartition("_")
        if stem in places and what == "t":
            return own + len(places) + places[stem]
        if stem in places and what in _FACTS:
            place, fact = places[stem], _FACTS[what]
            facts.append(lambda args: fact(args[place]))
            return own + 2 * len(places) + len(facts) - 1
        raise AutogradError(
            f"the forward rule of {self.schema.name} has the parameter {name!r}; expected an "
            "argument, perhaps with _t, _shape or _device, or grad, result or results"
        )

    # -- the kinds of rules -----------------------------------------------------------------------

    def _by_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        find = self._finder(function)

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            return function(*find(args, tangents, results, None))

        return push

    def _constant(self) -> Callable[..., Any]:
        return lambda op, args, tangents, results: [None] * len(results)

    def _elementwise(self) -> Callable[..., Any]:
        moving = self._moving

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            total = None
            for place, formula, find in moving:
                tangent = tangents[place]
                if tangent is not None:
                    if tangent.array.dtype.kind == "c":
                        tangent = _conj(tangent)
                    part = formula(*find(args, tangents, results, tangent))
                    if part.array.dtype.kind == "c":
                        part = _conj(part)
                    total = part if total is None else total + part
            return total

        return push

    def _linear(self) -> Callable[..., Any]:
        places = [place for place, _, _ in self._moving]

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            stack = [*args]
            for place in places:
                stack[place] = _or_zeros(tangents[place], args[place])
            return self.call(op, stack)

        return push

    def _multilinear(self) -> Callable[..., Any]:
        places = [place for place, _, _ in self._moving]

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            total = None
            for place in places:
                if tangents[place] is not None:
                    stack = [*args]
                    stack[place] = tangents[place]
                    part = self.call(op, stack)
                    total = part if total is None else total + part
            return total

        return push

    def _reduction(self) -> Callable[..., Any]:
        [(place, formula, find)] = self._moving
        axis, keepdims = self._places.get("axis"), self._places.get("keepdims")

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            xp = array_namespace()
            grad = xp.ones_like(results[0])
            gradient = formula(*find(args, tangents, results, grad))
            tangent = tangents[place]
            if gradient is None:
                return None
            gradient = _conj(gradient)
            over = tuple(_MATRIX) if axis is None else _axes(args[axis])
            keeps = keepdims is not None and args[keepdims]
            return sum_of_moved(gradient, tangent, over, keeps)

        return push

    def _matrix_function(self) -> Callable[..., Any]:
        [(place, formula, find)] = self._moving

        def push(op: Any, args: Any, tangents: Any, results: Any) -> Any:
            given = _adjoint(tangents[place])
            return _adjoint(formula(*find(args, tangents, results, given)))

        return push


def sum_of_moved(gradient: Any, tangent: Any, axis: Any, keepdims: bool) -> Any:
    """Return the sum of ``moved_by(gradient, tangent)``."""
    xp = array_namespace()
    if has_elements(gradient) and has_elements(tangent):
        moved = xp.sum(gradient * tangent, axis=axis, keepdims=keepdims)
        if bool(xp.all(xp.isfinite(moved))):
            return moved
    return xp.sum(moved_by(gradient, tangent), axis=axis, keepdims=keepdims)


def moved_by(gradient: Any, tangent: Any) -> Any:
    """Return ``gradient * tangent``.

    A zero factor makes the product zero even if the other factor is infinite or NaN.
    """
    xp = array_namespace()
    counts = xp.logical_or(xp.isfinite(gradient), tangent != 0)
    moves = xp.logical_or(xp.isfinite(tangent), gradient != 0)
    return xp.where(counts, gradient, 0.0) * xp.where(moves, tangent, 0.0)


def dispatched(value: Any) -> Any:
    """Return a plain array as a tensor, so that what a formula does with it is dispatched."""
    kind = type(value)
    if kind is Tensor or value is None or kind is int or kind is float or kind is bool:
        return value
    if kind is list:
        return [dispatched(each) for each in value]
    if find_key_bits(value) is not None and not hasattr(kind, "__torch_dispatch__"):
        return Tensor(value)
    return value


def _fitting(tangent: Any, result: Any) -> Any:
    """Return a tangent of the shape and dtype of its result."""
    if tangent is None or result is None:
        return None
    if type(result) is list:
        return [_fitting(*pair) for pair in zip(tangent, result, strict=True)]
    one, other = tangent.array, getattr(result, "array", result)
    if one.dtype != other.dtype:
        xp, kind = array_namespace(), other.dtype.kind
        if kind not in "fc":
            return None
        if kind == "f" and one.dtype.kind == "c":
            tangent = xp.real(tangent)
        if tangent.dtype != other.dtype:
            tangent = xp.astype(tangent, other.dtype)
    if one.shape != other.shape:
        tangent = array_namespace().broadcast_to(tangent, tuple(other.shape))
    return tangent


def _or_zeros(tangent: Any, value: Any) -> Any:
    if type(value) is list:
        given = tangent or [None] * len(value)
        return [_or_zeros(*pair) for pair in zip(given, value, strict=True)]
    return tangent if tangent is not None or value is None else array_namespace().zeros_like(value)


def _shape(value: Any) -> Any:
    if type(value) is list:
        return [tuple(each.shape) for each in value]
    return tuple(value.shape)


_PLACES = {"grad": 0, "grads": 0, "results": 1, "result": 2}
"""Where what is no argument's is among what ``find`` has; arguments and tangents come after it."""
_FACTS: dict[str, Callable[[Any], Any]] = {"shape": _shape, "device": lambda value: value.device}
"""The questions that a formula may ask of an argument."""


def _axes(axis: Any) -> Any:
    return tuple(axis) if type(axis) is list else axis


def _conj(x: Any) -> Any:
    return array_namespace().conj(x) if x.array.dtype.kind == "c" else x


def _adjoint(x: Any) -> Any:
    return _conj(array_namespace().matrix_transpose(x))
