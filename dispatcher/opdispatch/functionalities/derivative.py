"""Kernels for Autograd made of formulas, one for each argument: an operator's derivative.

    Derivative({
        "x1": lambda grad, x2: grad * xp.conj(x2),
        "x2": lambda grad, x1: grad * xp.conj(x1),
    })

A formula gives the gradient of one argument, and says by the names of its parameters what it needs
of the call, which is all that is kept for the way back:

    ``grad``                the gradient of the result; None never arrives
    ``grads``               those of all results, None for those without one
    the name of an argument its value
    ``x_shape``             the shape of the argument ``x``, without keeping its elements; of a
                            list of tensors, their shapes
    ``x_dtype``             the element type of the argument ``x``
    ``result``              the result, or ``results`` for all of several

It may leave the gradient of what was broadcast, and a complex one of a real argument: the engine
adds up, and takes the real part. That of a list of tensors is a list. With operators for its
steps, a formula has derivatives of any order.

Mirrors ``tools/autograd/derivatives.yaml`` of PyTorch, and what is generated of it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opdispatch.autograd.node import Edge, Facts, Gradients, Node
from opdispatch.autograd.saved_tensor import SavedResult, SavedTensor
from opdispatch.errors import AutogradError
from opdispatch.function_schema import FunctionSchema
from opdispatch.schema_type import ListType, OptionalType, SchemaType

Formula = Callable[..., Any]
Formulas = Mapping[str, Formula]
"""By the names of the arguments that have gradients."""
_GRAD, _GRADS = -1, -2


class Derivative:
    """The formulas of one operator, and what is kept of a call for them."""

    def __init__(self, schema: FunctionSchema, formulas: Formulas) -> None:
        """Raises AutogradError for a formula of, or with, what the operator does not have."""
        self.name = str(schema.name)
        self.title = title_of(schema)
        self.arguments = [argument.name for argument in schema.arguments]
        if unknown := [name for name in formulas if name not in self.arguments]:
            raise AutogradError(f"{self.name} has no argument {unknown[0]!r} with a derivative")
        self.places = [self.arguments.index(name) for name in formulas]
        self.lists = [isinstance(schema.arguments[n].type, ListType) for n in self.places]
        self.formulas = list(formulas.values())
        self.kept: list[str] = []
        """What formulas need of a call, by the names of their parameters."""
        self.needs = [
            [self._place_of(parameter) for parameter in inspect.signature(each).parameters]
            for each in self.formulas
        ]
        """For each formula, the places of that in ``kept``, or that it is a gradient."""
        self.keeps_results = not {"result", "results"}.isdisjoint(self.kept)
        self.num_results = len(schema.returns)
        first = schema.arguments[0].alias_info if schema.arguments else None
        self.writes = first is not None and first.is_write
        self.gives_views = first is not None and not first.is_write
        self.keyword_only = [a.name for a in schema.arguments if a.kwarg_only]
        self.plain = frozenset(
            a.name for a in schema.arguments if not a.type.dispatches and "[" not in str(a.type)
        )
        """Arguments that are kept as they are: no tensors, and nothing that can be changed."""
        self.plain_lists = frozenset(a.name for a in schema.arguments if _is_plain_list(a.type))
        """Lists of what is no tensor, or None: kept as copies."""

    def _place_of(self, parameter: str) -> int:
        if parameter in ("grad", "grads"):
            return _GRAD if parameter == "grad" else _GRADS
        argument, _, fact = parameter.rpartition("_")
        is_fact = fact in ("shape", "dtype") and argument in self.arguments
        if not is_fact and parameter not in (*self.arguments, "result", "results"):
            raise AutogradError(
                f"a formula of {self.name} needs {parameter!r}, which a call does not have"
            )
        if parameter not in self.kept:
            self.kept.append(parameter)
        return self.kept.index(parameter)

    def formulas_with(self, kept: str) -> list[int]:
        """Those that need it."""
        place = self.kept.index(kept)
        return [n for n, needs in enumerate(self.needs) if place in needs]


def _is_plain_list(kind: SchemaType) -> bool:
    of = kind.element if isinstance(kind, OptionalType) else kind
    return isinstance(of, ListType) and not re.search(r"Tensor|\[", str(of.element))


def title_of(schema: FunctionSchema) -> str:
    """``AddBackward`` for ``array::add.Tensor``."""
    words = schema.name.unqualified_name.strip("_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Backward"


class FormulaNode(Node):
    """A call of an operator whose derivative is made of formulas."""

    __slots__ = ("_derivative", "_kept", "_widths")

    def __init__(
        self,
        derivative: Derivative,
        edges: tuple[Edge | None, ...],
        facts: tuple[Facts | None, ...],
        kept: list[Any],
        widths: list[int] | None = None,
    ) -> None:
        super().__init__(edges, facts, derivative.num_results)
        self._derivative = derivative
        self._widths = widths
        """How many tensors each argument with a formula has, where one of them is a list."""
        self._kept: list[Any] | None = kept

    @property
    def name(self) -> str:
        """The operator's name: ``MultiplyBackward``."""
        return self._derivative.title

    def keep_results(self, results: Sequence[Any]) -> None:
        """Keeps what formulas need of the results."""
        assert self._kept is not None
        for n, name in enumerate(self._derivative.kept):
            if name == "result":
                self._kept[n] = SavedResult(results[0], 0)
            elif name == "results":
                self._kept[n] = [SavedResult(each, n) for n, each in enumerate(results)]

    def apply(self, grads: list[Any]) -> Gradients:
        """Calls the formulas of the arguments whose gradients are wanted."""
        if self._kept is None:
            raise AutogradError(
                f"the way back leads through {self.name} a second time, and what it kept was let "
                "go of the first time",
                hint="use retain_graph=True the first time",
            )
        derivative, widths = self._derivative, self._widths
        # The last two are where _GRADS and _GRAD point.
        known = [*(_unpacked(each, self) for each in self._kept), grads, grads[0]]
        results: list[Any] = []
        for n, formula in enumerate(derivative.formulas):
            width = 1 if widths is None else widths[n]
            wanted = self.edges[len(results) : len(results) + width]
            if wanted.count(None) == width:
                results += wanted
                continue
            gradient = formula(*[known[place] for place in derivative.needs[n]])
            if derivative.lists[n]:
                results += gradient
            else:
                results.append(gradient)
        return results

    def release(self) -> None:
        """Lets go of what was kept."""
        self._kept = None


def _unpacked(kept: Any, node: Node) -> Any:
    if type(kept) is SavedTensor or type(kept) is SavedResult:
        return kept.unpack(node)
    if type(kept) is list:
        return [_unpacked(each, node) for each in kept]
    return kept
