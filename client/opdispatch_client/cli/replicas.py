"""``opdispatch scale``, ``rollback``, ``drain``."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_interpreter, complete_library
from opdispatch_client.cli.libraries import PANEL
from opdispatch_client.cli.outcome import CommandError, UsageError

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session
    from opdispatch_client.listings import Interpreter

_EMPTY = ("drained", "ended")
_LOOK_SECONDS = 0.25

LibraryName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The library.", autocompletion=complete_library),
]


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
    """Add the commands of this file to the app."""
    for function in (scale, rollback, drain):
        add_command(app, function.__name__, function, rich_help_panel=PANEL)
