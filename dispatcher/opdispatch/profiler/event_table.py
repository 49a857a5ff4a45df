"""Averages as text, in the columns of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Sequence

from opdispatch.errors import ArgumentError
from opdispatch.profiler.function_event_avg import FunctionEventAvg

SORTABLE = ("self_cpu_time_total", "cpu_time_total", "cpu_time", "count", "flops", "result_bytes")

_SOURCE_WIDTH = 75


def format_time(microseconds: float) -> str:
    """Format a time: ``12.345us``, ``1.234ms`` or ``1.234s``."""
    if microseconds >= 1_000_000:
        return f"{microseconds / 1_000_000:.3f}s"
    if microseconds >= 1000:
        return f"{microseconds / 1000:.3f}ms"
    return f"{microseconds:.3f}us"


def format_bytes(count: int) -> str:
    """Format a size: ``12 B``, ``1.50 KB``, ``2.00 MB`` or ``1.00 GB``.

    A kilobyte has 1,024 bytes.
    """
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KB", "MB", "GB"):
        size /= 1024
        if size < 1024 or unit == "GB":
            break
    return f"{size:.2f} {unit}"


def format_table(
    averages: Sequence[FunctionEventAvg],
    dropped: int,
    sort_by: str | None,
    row_limit: int,
    name_width: int | None,
) -> str:
    """Return the table; see ``EventList.table``."""
    rows = list(averages)
    if sort_by is not None:
        if sort_by not in SORTABLE:
            raise ArgumentError(
                f"a table of events can be sorted by {', '.join(SORTABLE)}, not by {sort_by!r}"
            )
        rows.sort(key=lambda row: getattr(row, sort_by) or 0, reverse=True)
    shown = rows[:row_limit] if row_limit >= 0 else rows
    own = sum(row.self_cpu_time_total for row in rows)
    several = len({row.process for row in rows}) > 1
    shapes = any(row.input_shapes for row in rows)
    flops = any(row.flops is not None for row in rows)
    memory = any(row.result_bytes is not None for row in rows)
    source = any(row.stack for row in rows)

    heads = ["Name"] + ["Process"] * several
    heads += ["Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls"]
    heads += ["Result Mem"] * memory + ["Input Shapes"] * shapes
    heads += ["Source Location"] * source + ["Total FLOPs"] * flops
    left = 1 + several
    cells = [heads]
    for row in shown:
        line = _cells(row, own, name_width, several)
        line += ["--" if row.result_bytes is None else format_bytes(row.result_bytes)] * memory
        line += [str([list(shape) for shape in row.input_shapes])] * shapes
        line += [_end_of(row.stack[0]) if row.stack else ""] * source
        line += ["--" if row.flops is None else f"{row.flops:,}"] * flops
        cells.append(line)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    end = [f"Self CPU time total: {format_time(own)}"]
    if len(shown) < len(rows):
        end.insert(0, f"{len(rows) - len(shown)} more rows")
    if dropped:
        end.append(f"Events that were dropped: {dropped}")
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, *end])


def _cells(
    row: FunctionEventAvg,
    own: float,
    name_width: int | None,
    several: bool,
) -> list[str]:
    name = row.key
    if name_width is not None and len(name) > name_width:
        name = f"{name[: max(name_width - 3, 0)]}..."
    return [
        name,
        *[row.process] * several,
        _percent(row.self_cpu_time_total, own),
        format_time(row.self_cpu_time_total),
        _percent(row.cpu_time_total, own),
        format_time(row.cpu_time_total),
        format_time(row.cpu_time),
        str(row.count),
    ]


def _end_of(line: str) -> str:
    return line if len(line) <= _SOURCE_WIDTH else f"...{line[3 - _SOURCE_WIDTH :]}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "--"
