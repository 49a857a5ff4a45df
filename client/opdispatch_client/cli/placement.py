"""``opdispatch scale``, ``rollback``, ``drain``."""

from __future__ import annotations

from typing import Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_interpreter, complete_library
from opdispatch_client.cli.libraries import PANEL

LibraryName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The library.", autocompletion=complete_library),
]


def scale(
    settings: Settings,
    name: LibraryName,
    interpreters: Annotated[
        int, typer.Argument(metavar="N", min=1, help="How many interpreters shall hold it.")
    ],
) -> None:
    """Have more interpreters, or fewer, hold a library, while it runs.

    If there are fewer interpreters, those that come later are given it.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    with settings.connect() as session:
        library = session.scale(name, interpreters)
    if settings.json:
        print_json(library)
        return
    held = f"{len(library.interpreters)} of {library.interpreters_wanted} interpreters"
    where = ", ".join(library.interpreters)
    print_lines([f"{library.name} v{library.version} is in {held}: {where}"])


def rollback(settings: Settings, name: LibraryName) -> None:
    """Make the version of a library active again that was before the active one.

    Calls that start from then on use it, calls in flight finish. What was active is kept: a
    second rollback undoes the first.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    with settings.connect() as session:
        outcome = session.rollback(name)
    if settings.json:
        print_json(outcome)
        return
    print_lines(
        [
            f"{name} v{outcome.active.version} is active now; "
            f"v{outcome.replaced.version}, which was, is kept"
        ]
    )


def drain(
    settings: Settings,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The interpreter.", autocompletion=complete_interpreter
        ),
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Put it in use again.", show_default=False)
    ] = False,
) -> None:
    """Empty an interpreter: no new libraries and calls; what it holds moves to others first.

    Its calls in flight finish. It is "drained" when nothing is left, and can be stopped then
    without anybody noticing.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    with settings.connect() as session:
        interpreter = session.drain(name, undo=undo)
    if settings.json:
        print_json(interpreter)
        return
    left = ", ".join(interpreter.libraries)
    calls = f"{interpreter.calls_in_flight} calls in flight" if interpreter.calls_in_flight else ""
    rest = "; ".join(filter(None, (left and f"still holds {left}", calls)))
    more = f" ({rest})" if rest and interpreter.state == "draining" else ""
    print_lines([f"{interpreter.name} is {interpreter.state}{more}"])


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to the app."""
    for function in (scale, rollback, drain):
        add_command(app, function.__name__, function, rich_help_panel=PANEL)
