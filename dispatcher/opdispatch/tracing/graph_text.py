"""Graphs as text, in a notation like PyTorch's.

mlp(%x : float32[2, 3], %w : float32[3, 4]):
  %matmul : float32[2, 4] = array::matmul(%x, %w)
  %exp : float32[2, 4] = array::exp(%matmul)
  return %exp
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.tracing.node import Node, Value

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData


def format_graph(graph: GraphData) -> str:
    """Format the graph. ``!`` marks arguments that a call writes to."""
    inputs = ", ".join(f"%{each.name} : {each.facts}" for each in graph.inputs)
    return "\n".join([f"{graph.name}({inputs}):", *(f"  {line}" for line in _lines(graph))])


def _lines(graph: GraphData) -> Iterator[str]:
    for each in graph.constants:
        yield f"%{each.name} : {each.facts} = constant"
    for node in graph.nodes:
        call = f"{node.operator}({', '.join(_arguments(graph, node))})"
        returned = f"%{node.name} : {format_tree(node.returns)} = "
        yield call if node.returns is None else returned + call
    yield f"return {format_value(graph, graph.outputs)}"


def _arguments(graph: GraphData, node: Node) -> Iterator[str]:
    written = set(node.written)
    for each in node.args:
        yield format_value(graph, each, written)
    for name, each in node.kwargs.items():
        yield f"{name}={format_value(graph, each, written)}"


def format_value(graph: GraphData, tree: Any, written: set[Value] = frozenset()) -> str:  # type: ignore[assignment]
    """Format an argument, or the graph's output."""
    if isinstance(tree, Value):
        return f"%{graph.name_of(tree)}{'!' * (tree in written)}"
    if isinstance(tree, list | tuple):
        inner = ", ".join(format_value(graph, each, written) for each in tree)
        return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
    if isinstance(tree, dict):
        inner = ", ".join(
            f"{key!r}: {format_value(graph, each, written)}" for key, each in tree.items()
        )
        return f"{{{inner}}}"
    return str(tree) if isinstance(tree, np.dtype) else repr(tree)


def format_tree(returned: Any) -> str:
    """Format the types of a call's results."""
    if isinstance(returned, list | tuple):
        inner = ", ".join(map(format_tree, returned))
        return f"[{inner}]" if isinstance(returned, list) else f"({inner})"
    if isinstance(returned, bool | int | float | complex | str):
        return type(returned).__name__
    return str(returned)
