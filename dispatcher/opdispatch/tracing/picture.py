"""Abstract drawings of graphs: boxes, and arrows between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from opdispatch.tracing.graph_text import format_tree, format_value
from opdispatch.tracing.node import Node, Source, Value, values_in

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData

_LONGEST = 40


class Kind(StrEnum):
    """Kind of a box."""

    INPUT = "input"
    CONSTANT = "constant"
    CALL = "call"
    WRITE = "write"  # a call that writes to an argument
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Box:
    """An input, a constant, a call, or the result, with short lines of text."""

    kind: Kind
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """The flow of a value from one box to another, given by their indices."""

    start: int
    end: int
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes in topological order, and arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def picture_of(graph: GraphData) -> Picture:
    """Return the picture of a graph.

    The last box is the result, if the graph returns a value.
    """
    boxes = [Box(Kind.INPUT, (each.name, str(each.facts))) for each in graph.inputs]
    boxes += [Box(Kind.CONSTANT, (each.name, str(each.facts))) for each in graph.constants]
    firsts = {Source.INPUT: 0, Source.CONSTANT: len(graph.inputs), Source.NODE: len(boxes)}
    arrows: list[Arrow] = []

    def point(value: Value, end: int, *, is_written: bool = False) -> None:
        arrow = Arrow(firsts[value.source] + value.number, end, is_written)
        if arrow not in arrows[-_LONGEST:]:  # for a value that is passed twice
            arrows.append(arrow)

    for node in graph.nodes:
        written = set(node.written)
        for value in node.uses:
            point(value, len(boxes), is_written=value in written)
        boxes.append(Box(Kind.WRITE if written else Kind.CALL, _lines(graph, node)))
    if any(values_in(graph.outputs)):
        for value in values_in(graph.outputs):
            point(value, len(boxes))
        boxes.append(Box(Kind.OUTPUT, ("return",)))
    return Picture(tuple(boxes), tuple(arrows))


def _lines(graph: GraphData, node: Node) -> tuple[str, ...]:
    """Return the operator, its arguments other than tensors, and its results, as lines."""
    given = [_short(graph, each) for each in node.args]
    given += [f"{name}={_short(graph, each)}" for name, each in node.kwargs.items()]
    others = ", ".join(text for text in given if text)
    name = node.operator.partition("::")[2] if node.operator.startswith("array::") else ""
    lines = [
        name or node.operator,
        others,
        "" if node.returns is None else format_tree(node.returns),
    ]
    return tuple(_shortened(line) for line in lines if line)


def _short(graph: GraphData, given: Any) -> str:
    """Format an argument that is not a tensor."""
    return "" if any(values_in(given)) else format_value(graph, given)


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
