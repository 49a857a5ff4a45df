"""``opdispatch drain``."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_interpreter
from opdispatch_client.cli.exit_codes import CommandError, UsageError
from opdispatch_client.cli.libraries import PANEL

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session
    from opdispatch_client.listings import Interpreter

_EMPTY = ("drained", "ended")
_LOOK_SECONDS = 0.25


def drain(
    settings: Settings,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The interpreter.", autocompletion=complete_interpreter
        ),
    ],
    undo: Annotated[
        bool, typer.Option("--undo", help="Put it back in use.", show_default=False)
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until it is drained, for up to --timeout seconds, by default without limit. "
            "The exit code is 1 if it is not drained by then.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Drain an interpreter: it gets no new libraries or calls, and others take over what it holds.

    Calls in flight finish. Once it is "drained", it can be stopped without affecting any call.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    if wait and undo:
        raise UsageError("--wait is for draining; with --undo there is nothing to wait for")
    with settings.connect() as session:
        deadline = time.monotonic() + (settings.timeout or inf)
        interpreter = session.drain(name, undo=undo)
        if wait:
            interpreter = _wait_until_drained(session, interpreter, deadline)
    if settings.json:
        print_json(interpreter)
    else:
        print_lines([_describe(interpreter)])
    if wait and interpreter.state not in _EMPTY:
        raise CommandError(f"{name} was not drained within {settings.timeout:g} s")


def _wait_until_drained(session: Session, drained: Interpreter, deadline: float) -> Interpreter:
    """Return the interpreter's state when it is drained, has ended, or the time is up."""
    from opdispatch_client.cli.output import print_remark

    said = ""
    while drained.state not in _EMPTY and time.monotonic() < deadline:
        if (now := _describe(drained)) != said:
            said = now
            print_remark(now)
        time.sleep(max(min(_LOOK_SECONDS, deadline - time.monotonic()), 0))
        found = next((each for each in session.interpreters() if each.name == drained.name), None)
        # One that the daemon runs itself is restarted, and is then drained, too.
        if found is not None or not drained.supervised:
            drained = found or replace(drained, state="ended", libraries=(), calls_in_flight=0)
    return drained


def _describe(interpreter: Interpreter) -> str:
    left = ", ".join(interpreter.libraries)
    count = interpreter.calls_in_flight
    calls = f"{count} call{'s' if count > 1 else ''} in flight" if count else ""
    rest = "; ".join(filter(None, (left and f"still holds {left}", calls)))
    more = f" ({rest})" if rest and interpreter.state == "draining" else ""
    state = "has ended" if interpreter.state == "ended" else f"is {interpreter.state}"
    return f"{interpreter.name} {state}{more}"


def register(app: typer.Typer) -> None:
    """Add the command of this file to the app."""
    add_command(app, "drain", drain, rich_help_panel=PANEL)
