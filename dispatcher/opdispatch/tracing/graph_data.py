"""The nodes and values of a graph, and properties derived from them."""

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
    """Base of ``Graph``, used by the functions that save, draw and compile graphs. Immutable."""

    name: str
    parameters: tuple[Parameter, ...]
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: Any
    handles: Mapping[str, Operator] = field(default_factory=dict, repr=False)
    """Operators called in the trace, by name; others are looked up."""
    dispatcher: Dispatcher | None = field(default=None, repr=False)
    """Dispatcher for the lookup of other operators; None for the default dispatcher."""

    @functools.cached_property
    def operators(self) -> Mapping[str, FunctionSchema | None]:
        """Names of the called operators, with their schemas at the time of the trace."""
        return MappingProxyType({node.operator: node.schema for node in self.nodes})

    def facts_of(self, value: Value) -> Any:
        """Return the TensorFacts of a value.

        Returns a list for a list of tensors, and a tuple for several returns.
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
        """Return the display name of a value: ``x``, ``constant``, ``exp_1``, or
        ``linalg_qr[0]``."""
        owners: Mapping[Source, Sequence[Input | Constant | Node]] = {
            Source.INPUT: self.inputs,
            Source.CONSTANT: self.constants,
            Source.NODE: self.nodes,
        }
        items = "".join(f"[{item}]" for item in value.items)
        return f"{owners[value.source][value.number].name}{items}"
