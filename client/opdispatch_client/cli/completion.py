"""Shell completion: names from the running daemon, and bash's treatment of colons."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from opdispatch_wire.printable import printable_line

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session

# The tab key must not wait for a daemon that does not respond.
_TIMEOUT = 2.0
_VARIABLE = "_OPDISPATCH_COMPLETE"


def complete_operator(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of operators."""
    return _ask_daemon(ctx, lambda session: [operator.name for operator in session.operators()])


def complete_library(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of loaded libraries."""
    return _ask_daemon(ctx, lambda session: [library.name for library in session.libraries()])


def complete_interpreter(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of interpreters."""
    return _ask_daemon(ctx, lambda session: [found.name for found in session.interpreters()])


def complete_place(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of interpreters and their devices."""
    return _ask_daemon(
        ctx,
        lambda session: sorted(
            {name for found in session.interpreters() for name in (found.name, *found.devices)}
        ),
    )


def complete_service(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the services that ``health`` knows."""
    return _ask_daemon(
        ctx,
        lambda session: [
            *(f"library/{library.name}" for library in session.libraries()),
            *(f"interpreter/{found.name}" for found in session.interpreters()),
        ],
    )


@contextlib.contextmanager
def colons_in_bash() -> Iterator[None]:
    """Correct completions of names with colons, if bash asks for completions.

    Bash splits ``a::b`` into three words, and completes the last one. In the block, the words are
    joined; afterwards, the part that bash split off is removed from the completions.
    """
    if os.environ.get(_VARIABLE) != "complete_bash":
        yield
        return
    # Typer's script joins the words by newlines.
    words = os.environ["COMP_WORDS"].split("\n")
    place = min(int(os.environ["COMP_CWORD"]), len(words) - 1)
    joined, new_place = join_colon_words(words, place)
    os.environ["COMP_WORDS"] = "\n".join(joined)
    os.environ["COMP_CWORD"] = str(new_place)
    # Bash completes the last of the words that were joined; after a colon, an empty one.
    completed = "" if _is_colons(words[place]) else words[place]
    prefix = joined[new_place].removesuffix(completed)
    completions = io.StringIO()
    try:
        with contextlib.redirect_stdout(completions):
            yield
    finally:  # typer exits by SystemExit
        found = completions.getvalue().splitlines()
        print("\n".join(line.removeprefix(prefix) for line in found))


def join_colon_words(words: list[str], place: int) -> tuple[list[str], int]:
    """Join words that bash has split at colons; also return the new index for `place`."""
    joined: list[str] = []
    new_place = place
    for position, word in enumerate(words):
        glued = bool(word and joined) and (_is_colons(word) or joined[-1].endswith(":"))
        if glued and len(joined) > 1:  # the command itself is never part of a name
            joined[-1] += word
        else:
            joined.append(word)
        if position == place:
            new_place = len(joined) - 1
    return joined, new_place


def _is_colons(word: str) -> bool:
    return bool(word) and set(word) == {":"}


def _ask_daemon(context: typer.Context, list_names: Callable[[Session], list[str]]) -> list[str]:
    """Return the names; none after any error, since completion must print nothing."""
    from opdispatch_client.blocking import connect

    address = token_file = None
    level: typer.Context | None = context
    while level is not None:
        address = address or level.params.get("address")
        token_file = token_file or level.params.get("token_file")
        level = level.parent  # type: ignore[assignment]
    try:
        with connect(address, timeout=_TIMEOUT, token_file=token_file) as session:
            return [name for name in list_names(session) if name == printable_line(name)]
    except Exception:
        return []
