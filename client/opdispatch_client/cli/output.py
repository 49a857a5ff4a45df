"""Printing: data to stdout, messages to stderr; tables for people, JSON for programs.

On a terminal, tables fit its width. Elsewhere there are no colours and no wrapping: each row is one
line, unless COLUMNS sets the width.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opdispatch_wire.printable import (
    escape_in_json,
    printable_line,
    printable_lines,
    printable_message,
)

# Nothing is truncated at this width; rich requires some width.
_UNLIMITED = 100_000
# Table cells are broken within words that are longer than this, such as paths.
_LONGEST_WORD = 24


class _PlainConsole(Console):
    """Prints text unchanged: names such as ``a::b`` and ``int[2]`` are not markup."""

    def __init__(self, file: TextIO) -> None:
        wide = None if file.isatty() or os.environ.get("COLUMNS") else _UNLIMITED
        super().__init__(
            file=file, width=wide, markup=False, emoji=False, highlight=False, soft_wrap=False
        )

    def on_broken_pipe(self) -> NoReturn:
        """Leave the decision to ``main``; rich would exit at once."""
        raise BrokenPipeError


def console() -> Console:
    """Return the console for data."""
    return _PlainConsole(sys.stdout)


def talk_console() -> Console:
    """Return the console for progress and remarks."""
    return _PlainConsole(sys.stderr)


def print_lines(lines: Iterable[str]) -> None:
    """Print data, line by line; a text may itself have several lines."""
    for line in lines:
        print(printable_lines(line))


def print_remark(text: str) -> None:
    """Print a remark, which is not data, on stderr."""
    print(printable_message(text), file=sys.stderr)


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Print data (dataclasses, times, dicts, lists, ...) as one JSON document."""
    document = json.dumps(
        data, default=_to_json, indent=indent, ensure_ascii=False, allow_nan=False
    )
    print(escape_in_json(document))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below their headings; columns without a value in any row are omitted.

    On a narrow terminal, long cells are wrapped. If short words would have to be broken, each row
    is printed as fields, with an empty line between rows.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    shown_rows = [[printable_line(cell) for cell in row] for row in rows]
    turned = [
        each for each in zip(columns, *shown_rows, strict=True) if any(each[1:]) or len(each) == 1
    ]
    headings = [heading.upper() for heading, *_ in turned]
    for heading in headings:
        table.add_column(heading, overflow="fold")
    shown = list(zip(*turned, strict=True))[1:]
    for row in shown:
        table.add_row(*map(Text, row))
    needed = sum(_width_of_words(cells) for cells in turned) + 2 * (len(turned) - 1)
    if not shown or needed <= console().width:
        _print_trimmed(table)
        return
    for place, row in enumerate(shown):
        print_lines([""] if place else [])
        print_fields(zip(headings, row, strict=True), name_width=max(map(len, headings)))


def _width_of_words(cells: Iterable[str]) -> int:
    """Return the column width at which only paths and the like are broken."""
    words = (len(word) for cell in cells for word in cell.split())
    return min(max(words, default=0), _LONGEST_WORD)


def print_fields(fields: Iterable[tuple[str, str]], *, name_width: int | None = None) -> None:
    """Print names and values, one pair per line; fields without a value are omitted."""
    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    table.add_column(style="bold", no_wrap=True, min_width=name_width)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value:
            table.add_row(printable_line(name), Text(printable_lines(value)))
    _print_trimmed(table)


@contextmanager
def show_steps() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step.

    On a terminal that is a line that disappears at the end; elsewhere one line for each step.
    """
    talk = talk_console()
    if not talk.is_terminal:
        yield print_remark
        return
    with talk.status("") as status:
        status.stop()  # show nothing before the first step

        def show(step: str) -> None:
            status.update(Text(printable_line(step), no_wrap=True, overflow="ellipsis"))
            status.start()

        yield show


def format_size(size: int) -> str:
    """Format a size in bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def format_time(time: datetime | None) -> str:
    """Format the time in the user's time zone; "" for None."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""


def _print_trimmed(table: Table) -> None:
    """Print the table without trailing blanks."""
    out = console()
    with out.capture() as capture:
        out.print(table)
    for line in capture.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")


def _to_json(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")
