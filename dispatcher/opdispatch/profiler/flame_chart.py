"""Flame chart of a profile: time runs to the right, and callees are below their callers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from html import escape

from opdispatch.profiler.event_table import format_time
from opdispatch.profiler.function_events import FunctionEvent
from opdispatch.profiler.recorder import Process

_ROW = 18
_HEAD = 22
_LETTER = 6.2  # width of a character of the font below, in pixels


def draw_flame_chart(events: Sequence[FunctionEvent], width: int) -> str:
    """Draw the events as SVG, ``width`` pixels wide, with one band for each process.

    Events narrower than a tenth of a pixel are omitted.
    """
    begin = min((event.begin_ns for event in events), default=0)
    end = max((event.end_ns for event in events), default=1)
    scale = (width - 2) / max(end - begin, 1)
    boxes: list[str] = []
    top = 0
    for process in dict.fromkeys(event.process for event in events):
        rows = _rows(events, process)
        title = escape(f"{process.name}, process {process.pid}")
        boxes.append(f'<text x="2" y="{top + 15}" font-weight="bold">{title}</text>')
        top += _HEAD
        for event, row in rows:
            x = (event.begin_ns - begin) * scale + 1
            wide = (event.end_ns - event.begin_ns) * scale
            if wide >= 0.1:
                boxes.append(_box(event, x, top + row * _ROW, wide))
        top += _ROW * (1 + max(row for _, row in rows)) + 6
    total = format_time((end - begin) / 1000)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + 20}" '
            'font-family="monospace" font-size="10">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *boxes,
            f'<text x="2" y="{top + 13}">{total} from left to right</text>',
            "</svg>\n",
        ]
    )


def _rows(events: Sequence[FunctionEvent], process: Process) -> list[tuple[FunctionEvent, int]]:
    """Place the events of a process, each in the first free row below its parent."""
    free: list[int] = []  # time from which each row is free
    rows: dict[FunctionEvent, int] = {}
    for event in events:
        if event.process == process:
            row = rows[event.cpu_parent] + 1 if event.cpu_parent in rows else 0
            while row < len(free) and free[row] > event.begin_ns:
                row += 1
            free += [0] * (row + 1 - len(free))
            free[row] = event.end_ns
            rows[event] = row
    return list(rows.items())


def _box(event: FunctionEvent, x: float, y: int, width: float) -> str:
    hue = zlib.crc32(event.name.encode()) % 360
    what = f"{event.name}: {format_time(event.cpu_time_total)}"
    if event.failed:
        what += ", failed"
    letters = int((width - 4) / _LETTER)
    label = event.name if len(event.name) <= letters else f"{event.name[: letters - 1]}…"
    text = f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(label)}</text>' if letters > 2 else ""
    return (
        f'<g><title>{escape(what)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" '
        f'height="{_ROW - 2}" fill="hsl({hue} 65% 75%)"/>{text}</g>'
    )
