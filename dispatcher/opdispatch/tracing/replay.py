"""Graphs compiled to Python functions, so that a call of a graph costs little more than its
operators.

For ``%exp = array::exp(%x)`` and ``%add = array::add.Scalar(%exp, 1)`` it is::

    def replay(functions, inputs):
        (f0, f1,) = functions
        (i0,) = inputs
        n0 = f0(i0)
        n1 = f1(n0, given[0])
        del n0
        return n1

All names are generated, and constants are passed in: no text of a graph becomes part of the source,
so a graph from a file cannot inject code.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.boxing.generated_source import compile_function
from opdispatch.tracing.node import Node, Source, Value, values_in

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData

Replay = Callable[[Sequence[Callable[..., Any]], Sequence[Any]], Any]
"""Compiled graph; takes a function for each of ``Graph.operators``, and the inputs."""

_LETTERS = {Source.INPUT: "i", Source.CONSTANT: "c", Source.NODE: "n"}


def compile_replay(graph: GraphData) -> Replay:
    """Compile the graph to a function that releases each result after its last use."""
    source = _ReplaySource(graph)
    text = "\n".join(["def replay(functions, inputs):", *(f"    {x}" for x in source.lines()), ""])
    scope: dict[str, Any] = {
        "given": source.given,
        **{f"c{number}": each.tensor for number, each in enumerate(graph.constants)},
    }
    replay: Replay = compile_function(f"graph {graph.name}", text, scope, "replay")
    return replay


class _ReplaySource:
    """Source of one function. ``given`` has the constants that it refers to."""

    def __init__(self, graph: GraphData) -> None:
        self.given: list[Any] = []
        self._graph = graph
        self._places = {name: place for place, name in enumerate(graph.operators)}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the body."""
        graph = self._graph
        yield from self._unpacked("f", len(graph.operators), "functions")
        yield from self._unpacked("i", len(graph.inputs), "inputs")
        for number, (node, unused) in enumerate(zip(graph.nodes, _last_uses(graph), strict=True)):
            yield f"n{number} = {self._call(node)}"
            if unused:
                yield f"del {', '.join(f'n{each}' for each in unused)}"
        yield f"return {self._source(graph.outputs)}"

    def _unpacked(self, letter: str, count: int, name: str) -> Iterator[str]:
        if count:
            yield f"({', '.join(f'{letter}{n}' for n in range(count))},) = {name}"

    def _call(self, node: Node) -> str:
        parts = [self._source(each) for each in node.args]
        others: Mapping[str, Any] = node.kwargs
        if all(name.isidentifier() and not keyword.iskeyword(name) for name in others):
            parts += [f"{name}={self._source(each)}" for name, each in others.items()]
        else:
            parts.append(f"**{self._source(dict(others))}")
        return f"f{self._places[node.operator]}({', '.join(parts)})"

    def _source(self, tree: Any) -> str:
        if isinstance(tree, Value):
            items = "".join(f"[{item}]" for item in tree.items)
            return f"{_LETTERS[tree.source]}{tree.number}{items}"
        if isinstance(tree, list):
            return f"[{', '.join(map(self._source, tree))}]"
        if isinstance(tree, tuple):
            inner = "".join(f"{self._source(each)}, " for each in tree)
            return (
                f"{self._leaf(type(tree))}({inner})" if hasattr(tree, "_fields") else f"({inner})"
            )
        if isinstance(tree, dict):
            pairs = (f"{self._leaf(key)}: {self._source(each)}" for key, each in tree.items())
            return f"{{{', '.join(pairs)}}}"
        return self._leaf(tree)

    def _leaf(self, value: Any) -> str:
        self.given.append(value)
        return f"given[{len(self.given) - 1}]"


def _last_uses(graph: GraphData) -> list[list[int]]:
    """Return for each node the nodes whose results are dead after it has run."""
    last = {number: number for number in range(len(graph.nodes))}
    for number, node in enumerate(graph.nodes):
        last |= {v.number: number for v in node.uses if v.source is Source.NODE}
    for value in values_in(graph.outputs):
        if value.source is Source.NODE:
            last.pop(value.number, None)
    unused: list[list[int]] = [[] for _ in graph.nodes]
    for number, user in last.items():
        unused[user].append(number)
    return unused
