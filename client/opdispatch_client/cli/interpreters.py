"""``opdispatch interpreters``, ``revive``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_interpreter
from opdispatch_client.cli.listing_watch import Watch, show_listing

if TYPE_CHECKING:
    from opdispatch_client.listings import Interpreter

PANEL = "Interpreters"


def interpreters(settings: Settings, watch: Watch = False) -> None:
    """List the worker interpreters of the daemon.

    One that is quarantined died again and again, and is not running; its last output follows.
    """
    with settings.connect() as session:
        show_listing(
            (lambda: session.watch_registry(activity=True)) if watch else None,
            session.interpreters,
            lambda found: _show(found, json=settings.json, indent=None if watch else 2),
            lambda found: [replace(each, heartbeat_age=None) for each in found],
        )


def _show(found: list[Interpreter], *, json: bool, indent: int | None) -> None:
    from opdispatch_client.cli.output import (
        format_size,
        format_time,
        print_json,
        print_remark,
        print_table,
    )

    if json:
        print_json(found, indent=indent)
        return
    if not found:
        print_remark("no interpreters are connected (start one with `opdispatch worker`)")
        return
    columns = ("name", "pid", "state", "heard", "python", "devices", "running", "queued", "calls")
    print_table(
        (
            *(*columns, "kernel errors", "restarts", "libraries", "reserved for"),
            *("to and from devices", "connected at"),
        ),
        (
            (
                interpreter.name,
                str(interpreter.pid or ""),
                interpreter.state,
                _format_age(interpreter.heartbeat_age),
                interpreter.python_version,
                ", ".join(interpreter.devices),
                str(interpreter.calls_in_flight),
                str(interpreter.calls_queued),
                str(interpreter.calls_total),
                str(interpreter.kernel_errors or ""),
                str(interpreter.restarts),
                ", ".join(interpreter.libraries),
                interpreter.reserved_for,
                ", ".join(
                    f"{device} {format_size(each.to_device)}, {format_size(each.from_device)}"
                    for device, each in interpreter.transfers.items()
                ),
                format_time(interpreter.connected_at),
            )
            for interpreter in found
        ),
    )
    for interpreter in found:
        if interpreter.trouble:
            _print_trouble(interpreter)


def revive(
    settings: Settings,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The interpreter.", autocompletion=complete_interpreter
        ),
    ],
) -> None:
    """Restart an interpreter that is quarantined because it died repeatedly."""
    from opdispatch_client.cli.output import print_json, print_lines

    with settings.connect() as session:
        revived = session.revive(name)
    if settings.json:
        print_json({"revived": revived})
    elif revived:
        print_lines([f"{name} is being started"])
    else:
        print_lines([f"{name} is not quarantined"])


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the app."""
    for function in (interpreters, revive):
        add_command(app, function.__name__, function, rich_help_panel=PANEL)


def _format_age(age: float | None) -> str:
    return "" if age is None else f"{age:.1f} s ago"


def _print_trouble(interpreter: Interpreter) -> None:
    from opdispatch_client.cli.output import print_lines

    name = interpreter.name
    print_lines(
        [
            "",
            f"{name} is quarantined: {interpreter.trouble}",
            "its last output:" if interpreter.last_lines else "it printed nothing",
            *(f"    {line}" for line in interpreter.last_lines),
            f"`opdispatch revive {name}` starts it again",
        ]
    )
