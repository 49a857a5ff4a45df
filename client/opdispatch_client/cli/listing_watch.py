"""``--watch`` of lists: shows the daemon's state after each change, until Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
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

_ALTERNATE_SCREEN, _MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

T = TypeVar("T")


def show_listing(
    changes: Callable[[], Generator[object, None]] | None,
    fetch: Callable[[], T],
    show: Callable[[T], None],
    settled: Callable[[T], object] = lambda found: found,
) -> None:
    """Show what ``fetch`` returns; again after each of ``changes``, until Ctrl-C.

    On a terminal the screen is redrawn. Elsewhere the list is shown whenever the part that
    ``settled`` returns changes. Raises the errors of ``fetch`` and ``changes``, as when the daemon
    is gone.
    """
    if changes is None:
        show(fetch())
    elif sys.stdout.isatty():
        with screen() as draw, contextlib.closing(changes()) as coming:
            for _ in coming:
                draw(captured(show, fetch()))
    else:
        before: object = None
        with contextlib.closing(changes()) as coming:
            for _ in coming:
                found = fetch()
                if (now := settled(found)) != before:
                    before = now
                    show(found)
                    sys.stdout.flush()


class _TerminalText(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def captured(show: Callable[[T], None], found: T) -> str:
    """Return what ``show`` prints, as for a terminal."""
    text = _TerminalText()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        show(found)
    return text.getvalue()


@contextmanager
def screen() -> Iterator[Callable[[str], None]]:
    """Yield a function that draws a text on an alternate screen; restore the screen at the end."""
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
