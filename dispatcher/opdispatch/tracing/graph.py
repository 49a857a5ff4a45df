"""``Graph``: the recorded operator calls of a function, as a callable object.

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
from opdispatch.tracing.pytree import constant_key, map_leaves
from opdispatch.tracing.replay import Replay, compile_replay

if TYPE_CHECKING:
    from opdispatch.dispatch.dispatcher import Dispatcher
    from opdispatch.local_state.operator import Operator


class CallOperator(Protocol):
    """Function that calls the named operator, or records the call."""

    def __call__(self, operator: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result; several results can be indexed."""


@dataclass(frozen=True, eq=False)
class Graph(GraphData):
    """A recorded trace: inputs, constants, and nodes, each of which is an operator call.

    A graph has the signature of the traced function. Calling it runs the recorded operators in
    order on the new arguments, which may have other shapes, dtypes and devices if the operators
    support them. Arguments that are not tensors are constants, and may be omitted if no tensor
    follows. In-place operators write again, even to constants.

    ``outputs`` has the structure of the result, with Values in place of tensors. Immutable and
    thread-safe.
    """

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the graph with the operators of this process.

        Raises ArgumentError for arguments of another structure, OperatorNotFoundError for a missing
        operator, GraphError if an operator's schema has changed incompatibly since the trace, and
        any error of an operator.
        """
        inputs = self.bind(args, kwargs)
        return self._replay([self._function(*each) for each in self.operators.items()], inputs)

    def run(self, call: CallOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Perform or record each call by ``call``, and return the graph's results."""
        functions = [functools.partial(call, name) for name in self.operators]
        return self._replay(functions, self.bind(args, kwargs))

    @functools.cached_property
    def _replay(self) -> Replay:
        return compile_replay(self)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the input tensors among the arguments of a call of the graph.

        Raises ArgumentError if the arguments do not match the graph's parameters.
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
        """Signature of the graph. Trailing parameters that are not tensors have their traced value
        as default."""
        parameters: list[inspect.Parameter] = []
        needed = False  # overridden by a later positional parameter
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
        """Return a copy of the graph that calls the operators of the given dispatcher."""
        return replace(self, handles={}, dispatcher=dispatcher)

    def eliminate_dead_code(self) -> Graph:
        """Return the graph without dead calls and the constants that only they use.

        Calls that write to an input, a constant or a used value are kept, and so are calls that
        return nothing, draw random numbers, or belong to operators unknown to the trace. Views are
        determined from schemas and from the memory observed in the trace.
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
        """Source of an equivalent Python function, ``def name(x, *, ops, constants)``."""
        return format_code(self)

    def to_dot(self) -> str:
        """Return the graph in Graphviz's DOT language."""
        return format_dot(self)

    def to_svg(self) -> str:
        """Return an SVG drawing of the graph as text."""
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
        """Bind the inputs in a tree to the given values."""
        if isinstance(expected, Value):
            inputs[expected.number] = given
            return
        if isinstance(expected, list | tuple):
            # Lists and tuples are interchangeable, since files do not preserve the difference.
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
        """Return the function that calls an operator in this process."""
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
        # Creation operators return plain arrays, which become Tensors if gradients may be recorded.
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
