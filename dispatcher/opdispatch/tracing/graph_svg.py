"""Graphs as drawings: https://www.w3.org/TR/SVG11/"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opdispatch.tracing.layered_layout import Layout, lay_out
from opdispatch.tracing.picture import Box, Kind, Picture, picture_of

if TYPE_CHECKING:
    from opdispatch.tracing.graph import Graph

# In pixels: a character, a line of text, what is around text, and between layers.
_CHARACTER = 7.3
_LINE = 16.0
_PADDING = 9.0
_BETWEEN = 34.0
_MARGIN = 12.0

# Of this drawing alone, since a page may have several, and text of its own.
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


def draw_svg(graph: Graph) -> str:
    """The text of an SVG file. Calls that write to an argument are red."""
    picture = picture_of(graph)
    layout = lay_out(
        [_width(box) for box in picture.boxes], [(a.start, a.end) for a in picture.arrows]
    )
    tops, height = _tops(picture, layout)
    wide, high = layout.width + 2 * _MARGIN, height + 2 * _MARGIN
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
            *_arrows(picture, layout, tops),
            *_boxes(picture, layout, tops),
            "</svg>",
            "",
        ]
    )


def _width(box: Box) -> float:
    return max(map(len, box.lines)) * _CHARACTER + 2 * _PADDING


def _height(box: Box) -> float:
    return len(box.lines) * _LINE + 2 * _PADDING - 4


def _tops(picture: Picture, layout: Layout) -> tuple[list[float], float]:
    """Where each layer begins, and where the last one ends."""
    heights = [0.0] * (max(layout.layers, default=-1) + 1)
    for box, layer in zip(picture.boxes, layout.layers, strict=True):
        heights[layer] = max(heights[layer], _height(box))
    tops, top = [], 0.0
    for height in heights:
        tops.append(top)
        top += height + _BETWEEN
    return tops, max(0.0, top - _BETWEEN)


def _boxes(picture: Picture, layout: Layout, tops: list[float]) -> Iterator[str]:
    for box, center, layer in zip(picture.boxes, layout.centers, layout.layers, strict=True):
        width, height, top = _width(box), _height(box), tops[layer]
        corner = 9 if box.kind in (Kind.INPUT, Kind.OUTPUT) else 3
        yield (
            f'<g class="{box.kind}"><rect x="{center - width / 2:.1f}" y="{top:.1f}" '
            f'width="{width:.1f}" height="{height:.1f}" rx="{corner}"/>'
        )
        spans = "".join(
            f'<tspan x="{center:.1f}" y="{top + _PADDING + 10 + n * _LINE:.1f}"{_MORE * (n > 0)}>'
            f"{html.escape(line)}</tspan>"
            for n, line in enumerate(box.lines)
        )
        yield f"<text>{spans}</text></g>"


def _arrows(picture: Picture, layout: Layout, tops: list[float]) -> Iterator[str]:
    for arrow, way in zip(picture.arrows, layout.ways, strict=True):
        start = tops[layout.layers[arrow.start]] + _height(picture.boxes[arrow.start])
        points = [(layout.centers[arrow.start], start)]
        for layer, x in way:
            points += [(x, tops[layer]), (x, tops[layer + 1] - _BETWEEN)]
        points.append((layout.centers[arrow.end], tops[layout.layers[arrow.end]]))
        written = ' class="written"' if arrow.is_written else ""
        yield f'<path{written} d="{_curve(points)}" marker-end="url(#opdispatch-tip)"/>'


def _curve(points: list[tuple[float, float]]) -> str:
    """A line through the points that leaves and reaches each of them downwards."""
    (x, y), *others = points
    parts = [f"M{x:.1f},{y:.1f}"]
    for nx, ny in others:
        bend = (ny - y) / 2
        parts.append(f"C{x:.1f},{y + bend:.1f} {nx:.1f},{ny - bend:.1f} {nx:.1f},{ny:.1f}")
        x, y = nx, ny
    return " ".join(parts)
