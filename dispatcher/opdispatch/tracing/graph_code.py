"""Graphs as source of Python functions.

def mlp(x, w, *, ops, constants=()):
    matmul = ops.array.matmul.default(x, w)
    exp = ops.array.exp.default(matmul)
    return exp
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.errors import GraphError
from opdispatch.tracing.node import Node, Source, Value, values_in

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData


def format_code(graph: GraphData) -> str:
    """Format the graph as source of a function of its inputs, ``ops`` and the tensors of its
    constants.

    Raises GraphError for an argument without a literal in Python, such as a generator.
    """
    parameters = ", ".join([*(each.name for each in graph.inputs), "*", "ops", "constants=()"])
    return "\n".join(
        [f"def {graph.name}({parameters}):", *(f"    {line}" for line in _lines(graph))]
    )


def _lines(graph: GraphData) -> Iterator[str]:
    uses = {
        value.number for node in graph.nodes for value in node.uses if value.source is Source.NODE
    }
    uses |= {each.number for each in values_in(graph.outputs) if each.source is Source.NODE}
    for place, each in enumerate(graph.constants):
        yield f"{each.name} = constants[{place}]"
    for number, node in enumerate(graph.nodes):
        call = _call(graph, node)
        yield f"{node.name} = {call}" if number in uses else call
    yield f"return {_source(graph, graph.outputs)}"


def _call(graph: GraphData, node: Node) -> str:
    given = [_source(graph, each) for each in node.args]
    plain = {n: v for n, v in node.kwargs.items() if n.isidentifier() and not keyword.iskeyword(n)}
    given += [f"{name}={_source(graph, each)}" for name, each in plain.items()]
    if others := {n: v for n, v in node.kwargs.items() if n not in plain}:
        given.append(f"**{_source(graph, others)}")
    return f"{_operator(node.operator)}({', '.join(given)})"


def _operator(name: str) -> str:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    parts = [namespace, base, overload or "default"]
    if any(keyword.iskeyword(each) or not each.isidentifier() for each in parts):
        inner = "ops"
        for each in parts:
            inner = f"getattr({inner}, {each!r})"
        return inner
    return ".".join(["ops", *parts])


def _source(graph: GraphData, tree: Any) -> str:
    match tree:
        case Value():
            return graph.name_of(tree)
        case list():
            return f"[{', '.join(_source(graph, each) for each in tree)}]"
        case tuple():
            inner = ", ".join(_source(graph, each) for each in tree)
            return f"({inner}{',' * (len(tree) == 1)})"
        case dict():
            pairs = (f"{key!r}: {_source(graph, each)}" for key, each in tree.items())
            return f"{{{', '.join(pairs)}}}"
        case np.dtype():
            return repr(str(tree))
        case bool() | int() | str() | None:
            return repr(tree)
        case float() | complex():
            return f"{type(tree).__name__}({str(tree)!r})" if _is_unusual(tree) else repr(tree)
    raise GraphError(
        f"{graph.name} has an argument of type {type(tree).__name__}, which cannot be part of a "
        "program"
    )


def _is_unusual(number: complex) -> bool:
    return not np.isfinite(number)
