"""``Graph``: the calls of operators that a function makes, as a value that can be run.

Mirrors ``torch::jit::Graph`` and ``torch.fx.Graph``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from opdispatch.arrays import find_key_bits
from opdispatch.errors import ArgumentError, GraphError
from opdispatch.library.library import default_dispatcher
from opdispatch.schema.function_schema import FunctionSchema, OperatorName
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.dead_code import live_nodes
from opdispatch.tracing.graph_code import format_code
from opdispatch.tracing.graph_data import GraphData
from opdispatch.tracing.graph_dot import format_dot
from opdispatch.tracing.graph_svg import draw_svg
from opdispatch.tracing.graph_text import format_graph
from opdispatch.tracing.node import (
    Source,
    Value,
    values_in,
)
from opdispatch.tracing.replay import Replay, compile_replay
from opdispatch.tracing.structure import constant_key, map_leaves

if TYPE_CHECKING:
    from opdispatch.dispatch.dispatcher import Dispatcher
    from opdispatch.local_state.operator import Operator


class CallOperator(Protocol):
    """Calls the operator of that name, or records that it is to be called."""

    def __call__(self, operator: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result, whose items can be had by their places."""


@dataclass(frozen=True, eq=False)
class Graph(GraphData):
    """A recorded trace: inputs, constants, and nodes, each a call of an operator.

    A graph is called as the function was that it was traced from: it calls the operators in that
    order, and returns what the function did, made of the new arguments. These may have other
    shapes, dtypes and devices, as far as the operators take them. What was no tensor is a constant,
    and may be left out if no tensor comes after it. Operators that write to a tensor do so again,
    be it a constant.

    ``outputs`` is what it returns: lists, tuples and dicts with Values for tensors. Immutable; any
    thread may call it.
    """

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the operators of this process.

        Raises ArgumentError for arguments of another structure, OperatorNotFoundError, GraphError
        if an operator has another schema than in the trace, and what operators raise.
        """
        inputs = self.bind(args, kwargs)
        return self._replay([self._function(*each) for each in self.operators.items()], inputs)

    def run(self, call: CallOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make, or record, each call through ``call``, and return the graph's results."""
        functions = [functools.partial(call, name) for name in self.operators]
        return self._replay(functions, self.bind(args, kwargs))

    @functools.cached_property
    def _replay(self) -> Replay:
        return compile_replay(self)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the inputs among arguments of the graph.

        Raises ArgumentError if they do not fit it.
        """
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            names = ", ".join(f"{p.name}: {_count(p.given)}" for p in self.parameters)
            raise ArgumentError(
                f"{self.name} cannot be called so: {error}; its parameters are ({names})"
            ) from None
        inputs: list[Any] = [None] * len(self.inputs)
        for parameter in self.parameters:
            if parameter.name in given:
                self._take(parameter.given, given[parameter.name], parameter.name, inputs)
            elif any(values_in(parameter.given)):
                raise ArgumentError(f"{self.name} is missing its argument {parameter.name!r}")
        return inputs

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Its parameters. What was no tensor has what it was as its default, where it is last."""
        parameters: list[inspect.Parameter] = []
        needed = False  # by a later positional parameter
        for each in reversed(self.parameters):
            default = inspect.Parameter.empty
            if each.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD):
                positional = each.kind is not _KEYWORD_ONLY
                needed = needed or (positional and any(values_in(each.given)))
                if not (needed if positional else any(values_in(each.given))):
                    default = each.given
            parameters.append(inspect.Parameter(each.name, each.kind, default=default))
        return inspect.Signature(parameters[::-1])

    def on(self, dispatcher: Dispatcher) -> Graph:
        """Return the same graph, calling the operators of that dispatcher."""
        return replace(self, handles={}, dispatcher=dispatcher)

    def eliminate_dead_code(self) -> Graph:
        """Return the graph without calls whose results are not used, and their constants.

        Calls that write to an input, to a constant, or to what is used, stay, as do those that
        return nothing, draw random numbers, or are of operators that the trace did not know.
        What is a view of what, the schemas say, and what was seen of memory in the trace.
        """
        live = live_nodes(self)
        places = {number: place for place, number in enumerate(live)}
        less = self._renumbered(Source.NODE, places, nodes=tuple(self.nodes[n] for n in live))
        return less.without_unused_constants()

    def without_unused_constants(self) -> Graph:
        """Return the graph without constants that no node and no output uses."""
        used = {v.number for v in self._all_uses() if v.source is Source.CONSTANT}
        if len(used) == len(self.constants):
            return self
        kept = sorted(used)
        places = {number: place for place, number in enumerate(kept)}
        constants = tuple(self.constants[n] for n in kept)
        return self._renumbered(Source.CONSTANT, places, constants=constants)

    @property
    def code(self) -> str:
        """A Python function that does the same: ``def name(x, *, ops, constants)``."""
        return format_code(self)

    def to_dot(self) -> str:
        """Return the graph in the language of Graphviz."""
        return format_dot(self)

    def to_svg(self) -> str:
        """Draw the graph as the text of an SVG file."""
        return draw_svg(self)

    def _repr_svg_(self) -> str:
        """Draw the graph as SVG for notebooks."""
        return self.to_svg()

    def __str__(self) -> str:
        return format_graph(self)

    def __repr__(self) -> str:
        count = len(self.nodes)
        return f"<Graph {self.name} of {count} call{'s' * (count != 1)}>"

    # -- plumbing ---------------------------------------------------------------------------------

    def _take(self, expected: Any, given: Any, where: str, inputs: list[Any]) -> None:
        """Put what is given for the inputs in a tree to its places."""
        if isinstance(expected, Value):
            inputs[expected.number] = given
            return
        if isinstance(expected, list | tuple):
            # What is a list in a file may have been a tuple, and the other way round.
            if isinstance(given, list | tuple) and len(given) == len(expected):
                for place, (one, other) in enumerate(zip(expected, given, strict=True)):
                    self._take(one, other, f"{where}[{place}]", inputs)
                return
        elif isinstance(expected, dict):
            if isinstance(given, dict) and given.keys() == expected.keys():
                for key, one in expected.items():
                    self._take(one, given[key], f"{where}[{key!r}]", inputs)
                return
        elif type(given) is type(expected) and (
            given is expected or constant_key(given) == constant_key(expected)
        ):
            return
        raise ArgumentError(
            f"{self.name} was traced with {where} = {_describe(expected)}, and is called with "
            f"{_describe(given)}",
            hint="trace it again for another structure or another number",
            argument=where,
        )

    def _all_uses(self) -> Iterator[Value]:
        for node in self.nodes:
            yield from node.uses
        yield from values_in(self.outputs)

    def _function(self, name: str, traced: FunctionSchema | None) -> Callable[..., Any]:
        """Return the function that calls an operator here."""
        handle = self.handles.get(name)
        if handle is None:
            dispatcher = self.dispatcher or default_dispatcher()
            handle = dispatcher.get_schema(OperatorName.parse(name))
        signature = handle.signature
        if not _takes_calls_of(signature.schema, traced):
            raise GraphError(
                f"{self.name} was traced with {traced}, and the operator is now "
                f"{signature.schema}, which cannot take the same calls",
                operator=name,
            )
        # What is made of no tensor is a plain array: a Tensor, where gradients may be recorded.
        return handle if signature.dispatching else functools.partial(_made, handle)

    def _renumbered(self, source: Source, places: Mapping[int, int], **changes: Any) -> Graph:
        """Return the source with these changes, and values of that source by their new places."""

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, Value) and leaf.source is source:
                return replace(leaf, number=places[leaf.number])
            return leaf

        changed = replace(self, **changes)
        nodes = tuple(
            replace(
                node,
                args=map_leaves(moved, node.args),
                kwargs=MappingProxyType(map_leaves(moved, dict(node.kwargs))),
            )
            for node in changed.nodes
        )
        return replace(changed, nodes=nodes, outputs=map_leaves(moved, self.outputs))


_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def _made(handle: Operator, /, *args: Any, **kwargs: Any) -> Any:
    result = handle(*args, **kwargs)
    is_plain = find_key_bits(result) is not None and not isinstance(result, Tensor)
    return Tensor(result) if is_plain else result


def _takes_calls_of(schema: FunctionSchema, traced: FunctionSchema | None) -> bool:
    if traced is None or schema is traced or schema == traced:
        return True
    return schema.is_backward_compatible_with(traced)


def _count(tree: Any) -> str:
    count = sum(1 for _ in values_in(tree))
    return "no tensor" if not count else f"{count} tensor{'s' * (count > 1)}"


def _describe(tree: Any) -> str:
    if isinstance(tree, list | tuple | dict):
        return f"a {type(tree).__name__} of {len(tree)}"
    if hasattr(tree, "shape"):
        return "a tensor"
    text = repr(tree)
    return text if len(text) <= 60 else f"{text[:57]}..."
