"""Graphs in Graphviz's DOT language: https://graphviz.org/doc/info/lang.html"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch.tracing.picture import Kind, picture_of

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData

_STYLES = {
    Kind.INPUT: "shape=box, style=rounded",
    Kind.CONSTANT: "shape=box, style=dashed",
    Kind.CALL: "shape=box",
    Kind.WRITE: "shape=box, color=red",
    Kind.OUTPUT: "shape=box, style=rounded",
}


def format_dot(graph: GraphData) -> str:
    """Format the graph as a ``.dot`` file: ``dot -Tsvg graph.dot``."""
    picture = picture_of(graph)
    lines = [f"digraph {_quoted(graph.name)} {{", '  node [fontname="monospace"];']
    for number, box in enumerate(picture.boxes):
        lines.append(f"  b{number} [label={_quoted(*box.lines)}, {_STYLES[box.kind]}];")
    for arrow in picture.arrows:
        style = " [color=red]" if arrow.is_written else ""
        lines.append(f"  b{arrow.start} -> b{arrow.end}{style};")
    return "\n".join([*lines, "}", ""])


def _quoted(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
