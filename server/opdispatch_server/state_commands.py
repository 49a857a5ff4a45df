"""``opdispatch state``: the state folder of a daemon as one file, out and in."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from opdispatch_server.configuration import default_state_folder


class StateAction(enum.StrEnum):
    """What to do."""

    EXPORT = "export"
    IMPORT = "import"


def state(
    action: Annotated[StateAction, typer.Argument(help="What to do.", show_default=False)],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", dir_okay=False, help="The archive.", show_default=False),
    ],
    state_folder: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            file_okay=False,
            help="The daemon's state folder. Default: $XDG_STATE_HOME/opdispatch, else "
            "~/.local/state/opdispatch.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Back up what a daemon has loaded, or restore it: `state export FILE`, `state import FILE`.

    The archive holds the journal and the uploads, with their hashes. An export may be made
    while the daemon runs. An import is refused while one does; it replaces the state that is
    there, once everything has been checked, and keeps the old journal beside it.
    """
    from opdispatch.errors import OpdispatchError
    from opdispatch_server.state.state_archive import export_state, import_state

    folder = state_folder or default_state_folder()
    try:
        if action is StateAction.EXPORT:
            summary = export_state(folder, file)
        else:
            summary = import_state(file, folder)
    except (OpdispatchError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename or file}: {error.strerror}"
        print(f"opdispatch: {message}", file=sys.stderr)
        raise typer.Exit(1) from error
    print(
        f"{action.value}ed {_count(summary.libraries, 'library', 'libraries')} with "
        f"{_count(summary.contents, 'upload', 'uploads')}, up to event {summary.last_event}"
    )
    if summary.replaced:
        print(f"the journal before is in {summary.replaced}")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
