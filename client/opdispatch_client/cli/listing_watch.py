"""``--watch`` of lists: what the daemon says, again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Show it again whenever it changes, until Ctrl-C.",
        show_default=False,
    ),
]

PAUSE = 1.0
"""Seconds between two looks."""

_ALTERNATE_SCREEN, _MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

T = TypeVar("T")


def show_listing(
    watch: bool,
    fetch: Callable[[], T],
    show: Callable[[T], None],
    settled: Callable[[T], object] = lambda found: found,
) -> None:
    """Show what ``fetch`` returns; with ``watch`` until Ctrl-C, or the daemon is gone.

    On a terminal the screen is drawn anew each second. Elsewhere it is shown whenever that part of
    it changes which ``settled`` returns.
    """
    if not watch:
        show(fetch())
    elif sys.stdout.isatty():
        with _screen() as draw:
            while True:
                draw(_captured(show, fetch()))
                time.sleep(PAUSE)
    else:
        before: object = None
        while True:
            found = fetch()
            if (now := settled(found)) != before:
                before = now
                show(found)
                sys.stdout.flush()
            time.sleep(PAUSE)


class _TerminalText(io.StringIO):
    """Takes what is printed for a terminal."""

    def isatty(self) -> bool:
        return True


def _captured(show: Callable[[T], None], found: T) -> str:
    text = _TerminalText()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        show(found)
    return text.getvalue()


@contextmanager
def _screen() -> Iterator[Callable[[str], None]]:
    """Yield a function that draws a text on an alternate screen; restore the screen afterwards."""
    out = sys.stdout

    def draw(text: str) -> None:
        lines = text.splitlines()[: max(shutil.get_terminal_size().lines - 1, 1)]
        body = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
        out.write(f"{_HOME}{body}{_CLEAR_REST}")
        out.flush()

    out.write(_ALTERNATE_SCREEN)
    try:
        yield draw
    finally:
        out.write(_MAIN_SCREEN)
        out.flush()
