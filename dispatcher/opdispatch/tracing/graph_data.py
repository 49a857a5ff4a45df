"""The nodes and values of a graph, and the facts that follow from those alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tracing.node import Constant, Input, Node, Parameter, Source, Value

if TYPE_CHECKING:
    from opdispatch.dispatch.dispatcher import Dispatcher
    from opdispatch.local_state.operator import Operator


@dataclass(frozen=True, eq=False)
class GraphData:
    """A base of ``Graph``, for the functions that write, draw and compile one. Immutable."""

    name: str
    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: Any
    handles: Mapping[str, Operator] = field(default_factory=dict, repr=False)
    """The operators that the trace called, by their names; others are looked up."""
    dispatcher: Dispatcher | None = field(default=None, repr=False)
    """Where the other operators are looked up: in the default dispatcher, if it is None."""

    @functools.cached_property
    def operators(self) -> Mapping[str, FunctionSchema | None]:
        """The names of the operators that it calls, and their schemas in the trace."""
        return MappingProxyType({node.operator: node.schema for node in self.nodes})

    def facts_of(self, value: Value) -> Any:
        """Return the TensorFacts of a value.

        Of a list, or several returns, a list or tuple of them.
        """
        if value.source is Source.INPUT:
            return self.inputs[value.number].facts
        if value.source is Source.CONSTANT:
            return self.constants[value.number].facts
        facts = self.nodes[value.number].returns
        for item in value.items:
            facts = facts[item]
        return facts

    def name_of(self, value: Value) -> str:
        """Name a value: ``x``, ``constant``, ``exp_1``, or ``linalg_qr[0]``."""
        owners: Mapping[Source, Sequence[Input | Constant | Node]] = {
            Source.INPUT: self.inputs,
            Source.CONSTANT: self.constants,
            Source.NODE: self.nodes,
        }
        items = "".join(f"[{item}]" for item in value.items)
        return f"{owners[value.source][value.number].name}{items}"
