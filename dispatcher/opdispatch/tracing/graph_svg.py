"""Graphs as SVG drawings: https://www.w3.org/TR/SVG11/

One column of boxes in call order, with arrows as arcs on the right, which needs no layout
algorithm. Use ``graph_dot`` and Graphviz for a layered layout.
"""

from __future__ import annotations

import html
from itertools import accumulate
from typing import TYPE_CHECKING

from opdispatch.tracing.picture import Arrow, Box, Kind, picture_of

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData

# In pixels: width of a character, height of a line, padding of text, and distance of boxes.
_CHARACTER = 7.3
_LINE = 16.0
_PADDING = 9.0
_BETWEEN = 22.0
_MARGIN = 12.0
# Distance of an arc from the boxes for each box it passes, and its maximum.
_ARC = 16.0
_WIDEST_ARC = 200.0
# Vertical distance between arcs that enter a box and arcs that leave it.
_APART = 5.0

# Scoped to this drawing, since a page may contain several, and other text.
_STYLE = """
  .opdispatch text { font: 12px monospace; text-anchor: middle; fill: #1b1f24 }
  .opdispatch text tspan.more { fill: #57606a }
  .opdispatch rect { stroke: #57606a; fill: #ffffff }
  .opdispatch .input rect { fill: #ddf4ff; stroke: #0969da }
  .opdispatch .constant rect { fill: #f6f8fa; stroke-dasharray: 4 3 }
  .opdispatch .write rect { fill: #ffebe9; stroke: #cf222e }
  .opdispatch .output rect { fill: #dafbe1; stroke: #1a7f37 }
  .opdispatch path { fill: none; stroke: #8c959f; stroke-width: 1.3 }
  .opdispatch path.written { stroke: #cf222e }
  .opdispatch marker path { fill: #8c959f; stroke: none }
"""

_MORE = ' class="more"'


def draw_svg(graph: GraphData) -> str:
    """Return the text of an SVG file. Calls that write to an argument are red."""
    picture = picture_of(graph)
    column = max(map(_width, picture.boxes), default=0.0)
    *tops, end = accumulate((_height(box) + _BETWEEN for box in picture.boxes), initial=0.0)
    reach = max(map(_bend, picture.arrows), default=0.0)
    wide, high = column + reach + 2 * _MARGIN, max(0.0, end - _BETWEEN) + 2 * _MARGIN
    return "\n".join(
        [
            '<svg class="opdispatch" xmlns="http://www.w3.org/2000/svg" '
            f'width="{wide:.0f}" height="{high:.0f}" '
            f'viewBox="{-_MARGIN:g} {-_MARGIN:g} {wide:.1f} {high:.1f}">',
            f"<title>{html.escape(graph.name)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="opdispatch-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect x="{-_MARGIN:g}" y="{-_MARGIN:g}" width="{wide:.1f}" height="{high:.1f}" '
            'style="fill: #ffffff; stroke: none"/>',
            *(_arrow(arrow, picture.boxes, tops, column) for arrow in picture.arrows),
            *(_box(*each, column) for each in zip(picture.boxes, tops, strict=True)),
            "</svg>",
            "",
        ]
    )


def _width(box: Box) -> float:
    return max(map(len, box.lines)) * _CHARACTER + 2 * _PADDING


def _height(box: Box) -> float:
    return len(box.lines) * _LINE + 2 * _PADDING - 4


def _box(box: Box, top: float, width: float) -> str:
    corner = 9 if box.kind in (Kind.INPUT, Kind.OUTPUT) else 3
    spans = "".join(
        f'<tspan x="{width / 2:.1f}" y="{top + _PADDING + 10 + n * _LINE:.1f}"{_MORE * (n > 0)}>'
        f"{html.escape(line)}</tspan>"
        for n, line in enumerate(box.lines)
    )
    return (
        f'<g class="{box.kind}"><rect x="0" y="{top:.1f}" width="{width:.1f}" '
        f'height="{_height(box):.1f}" rx="{corner}"/>\n<text>{spans}</text></g>'
    )


def _bend(arrow: Arrow) -> float:
    return min(_ARC * (arrow.end - arrow.start - 1), _WIDEST_ARC)


def _arrow(arrow: Arrow, boxes: tuple[Box, ...], tops: list[float], right: float) -> str:
    """Draw a straight line to the next box, or an arc around the boxes in between."""
    start, end = (tops[n] + _height(boxes[n]) / 2 for n in (arrow.start, arrow.end))
    if bend := _bend(arrow):
        control = (
            right + bend * 4 / 3
        )  # a cubic curve reaches only three quarters of the distance of its control points
        start, end = start + _APART, end - _APART
        line = (
            f"M{right:.1f},{start:.1f} "
            f"C{control:.1f},{start:.1f} {control:.1f},{end:.1f} {right:.1f},{end:.1f}"
        )
    else:
        line = f"M{right / 2:.1f},{tops[arrow.end] - _BETWEEN:.1f} V{tops[arrow.end]:.1f}"
    written = ' class="written"' if arrow.is_written else ""
    return f'<path{written} d="{line}" marker-end="url(#opdispatch-tip)"/>'
