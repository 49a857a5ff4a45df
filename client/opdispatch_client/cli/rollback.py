"""``opdispatch rollback``."""

from __future__ import annotations

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.libraries import PANEL, LibraryName


def rollback(settings: Settings, name: LibraryName) -> None:
    """Reactivate the previous version of a library.

    New calls use it; calls in flight finish. The version that was active is kept, so that a second
    rollback undoes the first.
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


def register(app: typer.Typer) -> None:
    """Add the command of this file to the app."""
    add_command(app, "rollback", rollback, rich_help_panel=PANEL)
