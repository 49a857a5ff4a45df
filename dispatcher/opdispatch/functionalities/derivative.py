"""Derivatives of operators: kernels for Autograd made of one formula for each argument.

    Derivative({
        "x1": lambda grad, x2: grad * xp.conj(x2),
        "x2": lambda grad, x1: grad * xp.conj(x1),
    })

A formula returns the gradient of one argument. The names of its parameters say which values of the
call it needs; only these are saved for the backward pass:

    ``grad``                the gradient of the result, never None
    ``grads``               the gradients of all results, None for a result without one
    the name of an argument the value of that argument
    ``x_shape``             the shape of the argument ``x``, whose elements are not saved; a list
                            of shapes if ``x`` is a list of tensors
    ``x_device``            the device of the argument ``x``, a tensor
    ``result``              the result; ``results`` if there are several

The gradient may have the shape to which the argument was broadcast, and may be complex for a real
argument: the engine sums along the broadcast axes and takes the real part. For a list of tensors it
is a list. A formula that computes by operators has derivatives of any order.

Mirrors PyTorch's ``tools/autograd/derivatives.yaml`` and the code generated from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.autograd.node import Gradients, Node
from opdispatch.autograd.recording_state import SavedTensorHooks
from opdispatch.autograd.saved_tensor import (
    PackedTensor,
    pack_result,
    pack_tensor,
    save_result,
    second_pass_error,
    unpack_result,
    unpack_tensor,
)
from opdispatch.errors import AutogradError
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import SCALAR, ListType, SchemaType
from opdispatch.tensors.tensor import Tensor, handles_operators

Formula = Callable[..., Any]


class Forward(Enum):
    """How the tangent of a result is computed from the backward formulas of an entry."""

    CONSTANT = "it is zero, or the result has a type without tangents"
    ELEMENTWISE = "the sum of the backward formulas, applied to the tangents of their arguments"
    LINEAR = "the operator, applied to the tangents; zeros for arguments without one"
    MULTILINEAR = "the sum of the operator, applied to one tangent and the other arguments' values"
    REDUCTION = "the tangent times the gradient of each result, summed along the reduced axes"
    MATRIX_FUNCTION = "the adjoint of the backward formula, applied to the adjoint of the tangent"


RESULT = "result"
"""The key of an entry's rule for forward mode."""
Formulas = Mapping[str, Any]
"""Backward formulas by the names of the arguments that have gradients; and under ``RESULT``, a
``Forward`` or a function (see ``forward_derivative.py``)."""
_GRAD, _GRADS, _OWN_SHAPE = -1, -2, -3


class Derivative:
    """The backward formulas of one operator, and which values of a call they need."""

    def __init__(self, schema: FunctionSchema, formulas: Formulas) -> None:
        """Check the formulas against the schema.

        Raises AutogradError for a formula whose name is not an argument of the operator, or whose
        parameters name values that a call does not have.
        """
        formulas = {name: each for name, each in formulas.items() if name != RESULT}
        self.name = str(schema.name)
        self.title = title_of(schema)
        self.arguments = {argument.name: place for place, argument in enumerate(schema.arguments)}
        if unknown := [name for name in formulas if name not in self.arguments]:
            raise AutogradError(f"{self.name} has no argument {unknown[0]!r} with a derivative")
        types = [argument.type for argument in schema.arguments]
        self.places = [self.arguments[name] for name in formulas]
        self.lists = [isinstance(types[place], ListType) for place in self.places]
        self.formulas = list(formulas.values())
        self.kept: list[str] = []
        """The names of the values that a call saves."""
        self.needs = [
            [self._place_of(parameter, n) for parameter in inspect.signature(each).parameters]
            for n, each in enumerate(self.formulas)
        ]
        """For each formula and parameter, the index in ``kept``, or _GRAD, _GRADS or _OWN_SHAPE."""
        self.keeps_results = not {"result", "results"}.isdisjoint(self.kept)
        self.has_tensors = [
            name in self.arguments and has_tensors(types[self.arguments[name]])
            for name in self.kept
        ]
        """For each saved value, whether it is an argument with tensors, checked on use."""
        self.unpacked = [
            n
            for n, name in enumerate(self.kept)
            if self.has_tensors[n] or name in ("result", "results")
        ]
        """The indices in ``kept`` of the values that are unpacked before a formula gets them."""
        values = {a.name for a in schema.arguments if a.type.dispatches or a.type == SCALAR}
        self.keeps_values = not values.union(("result", "results")).isdisjoint(self.kept)
        """Whether tensors are saved, or numbers, which are tensors in PyTorch."""
        self.num_results = len(schema.returns)
        first = schema.arguments[0].alias_info if schema.arguments else None
        self.writes = first is not None and first.is_write
        self.gives_views = first is not None and not first.is_write

    def _place_of(self, parameter: str, formula: int) -> int:
        if parameter in ("grad", "grads"):
            return _GRAD if parameter == "grad" else _GRADS
        of_shape = self.arguments.get(parameter.removesuffix("_shape"))
        known = (*self.arguments, *(f"{name}_device" for name in self.arguments))
        if parameter not in (*known, "result", "results") and of_shape is None:
            raise AutogradError(
                f"a formula of {self.name} has the parameter {parameter!r}; expected grad, grads, "
                "result, results, or an argument, perhaps with _shape or _device"
            )
        is_own = parameter not in known and of_shape == self.places[formula]
        if is_own and not self.lists[formula]:
            return _OWN_SHAPE  # which the node has anyway
        if parameter not in self.kept:
            self.kept.append(parameter)
        return self.kept.index(parameter)

    def formulas_with(self, kept: str) -> list[int]:
        """Return the indices of the formulas that need the saved value named ``kept``."""
        place = self.kept.index(kept)
        return [n for n, needs in enumerate(self.needs) if place in needs]


def has_tensors(kind: SchemaType) -> bool:
    """Return whether values of the type are or contain tensors."""
    return "Tensor" in str(kind)


def title_of(schema: FunctionSchema) -> str:
    """Return the title of a node: ``AddBackward`` for ``array::add.Tensor``."""
    words = schema.name.unqualified_name.strip("_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Backward"


class FormulaNode(Node):
    """A call of an operator whose derivative is made of formulas.

    Calls are many: the kernels in ``derivative_kernel.py`` make it without ``__init__``, and set
    what has no default here or in ``Node``.
    """

    derivative: Derivative
    kept: list[Any] | None
    """Values that formulas need, None for those not wanted. None once they are released."""
    widths: tuple[int, ...] | None = None
    """How many tensors each argument with a formula has, where one of them is a list."""

    @property
    def name(self) -> str:
        """The operator's name: ``MultiplyBackward``."""
        return self.derivative.title

    def keep_results(self, results: Sequence[Any]) -> None:
        """Keep what formulas need of the results that are tensors."""
        assert self.kept is not None
        saved = [save_result(each) if isinstance(each, Tensor) else None for each in results]
        for n, name in enumerate(self.derivative.kept):
            if name == "result":
                self.kept[n] = saved[0]
            elif name == "results":
                self.kept[n] = saved

    def apply(self, grads: list[Any]) -> Gradients:
        """Call the formulas of the arguments whose gradients are wanted."""
        if self.kept is None:
            raise second_pass_error(self.name)
        derivative, widths = self.derivative, self.widths
        # The last three are where _OWN_SHAPE, _GRADS and _GRAD point.
        saved = self.kept if None not in self.edges else self._needed(self.kept)
        known = [*saved, None, grads, grads[0]]
        for n in derivative.unpacked:
            known[n] = self._unpacked(saved[n], derivative.kept[n], derivative.has_tensors[n])
        results: list[Any] = []
        for n, formula in enumerate(derivative.formulas):
            place, width = len(results), 1 if widths is None else widths[n]
            wanted = self.edges[place : place + width]
            if wanted.count(None) == width:
                results += wanted
                continue
            if (facts := self.facts[place]) is not None:
                known[_OWN_SHAPE] = tuple(facts[0])
            gradient = formula(*map(known.__getitem__, derivative.needs[n]))
            if derivative.lists[n]:
                results += gradient
            else:
                results.append(gradient)
        return results

    def _needed(self, kept: list[Any]) -> list[Any]:
        """Return the saved values, replacing those that no wanted formula needs with None.

        An unneeded value may have been written to since it was saved, so unpacking it could raise.
        Some are unneeded because an argument requires gradients but has no edge, such as a view
        of a leaf made under ``no_grad``.
        """
        needed: set[int] = set()
        place = 0
        for n, needs in enumerate(self.derivative.needs):
            width = 1 if self.widths is None else self.widths[n]
            if self.edges[place : place + width].count(None) != width:
                needed.update(needs)
            place += width
        return [each if n in needed else None for n, each in enumerate(kept)]

    def _unpacked(self, kept: Any, name: str, has_tensors: bool) -> Any:
        """Unpack the saved value of a formula parameter; return None for None."""
        if kept is None:
            return None
        if has_tensors:
            return unpack_tensor(kept, self) if type(kept) is tuple else self._unpacked_other(kept)
        if name == "result":
            return unpack_result(kept, self)
        return [each and unpack_result(each, self, n) for n, each in enumerate(kept)]

    def _unpacked_other(self, kept: Any) -> Any:
        """Unpack a packed tensor, an array, or a list of these, saved tensors and None."""
        if type(kept) is list:
            return [self._unpacked(each, "", True) for each in kept]
        if type(kept) is PackedTensor:
            return kept.unpack()
        if find_key_bits(kept) is not None and not handles_operators(type(kept)):
            return Tensor(kept)  # so that whatever a formula does with it is dispatched
        return kept

    def pack_saved(self, hooks: SavedTensorHooks) -> None:
        """Pack the saved tensors by ``hooks``, and arrays as tensors."""
        assert self.kept is not None
        for n, (name, has_tensors) in enumerate(
            zip(self.derivative.kept, self.derivative.has_tensors, strict=True)
        ):
            kept = self.kept[n]
            if has_tensors:
                self.kept[n] = _packed(kept, hooks)
            elif name == "result":
                self.kept[n] = kept and pack_result(kept, hooks)
            elif name == "results":
                self.kept[n] = kept and [each and pack_result(each, hooks) for each in kept]

    def release(self) -> None:
        """Release the saved values; a node that saves none can run backward again."""
        if self.derivative.keeps_values:
            self.kept = None


def _packed(kept: Any, hooks: SavedTensorHooks) -> Any:
    """Apply pack hooks to a tensor, an array, or those in a list; return anything else as it is."""
    if type(kept) is tuple:
        return pack_tensor(kept, hooks)
    if type(kept) is list:
        return [_packed(each, hooks) for each in kept]
    if find_key_bits(kept) is not None and not handles_operators(type(kept)):
        return pack_tensor((Tensor(kept), 0), hooks)
    return kept
