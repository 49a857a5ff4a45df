"""``opdispatch scale``."""

from __future__ import annotations

from typing import Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.libraries import PANEL, LibraryName


def scale(
    settings: Settings,
    name: LibraryName,
    interpreters: Annotated[
        int, typer.Argument(metavar="N", min=1, help="The number of interpreters to hold it.")
    ],
) -> None:
    """Set the number of interpreters that hold a library, while it is in use.

    If there are too few interpreters, those that join later load it.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    with settings.connect() as session:
        library = session.scale(name, interpreters)
    if settings.json:
        print_json(library)
        return
    held, wanted = len(library.interpreters), library.interpreters_wanted
    counted = f"{held} interpreter{'s' * (held != 1)}"
    line = f"{library.name} v{library.version} is in {counted}: {', '.join(library.interpreters)}"
    if held > wanted:
        line += f"; it will be in {wanted} when the calls in the others have ended"
    elif library.waiting_for:
        line += f"; it waits for {library.waiting_for}"
    print_lines([line])


def register(app: typer.Typer) -> None:
    """Add the command of this file to the app."""
    add_command(app, "scale", scale, rich_help_panel=PANEL)
