"""Options common to all commands: --address, --timeout, --token-file, --json, --debug; a session.

A command is a function whose first parameter is the Settings; the options above are added to its
own here. They may also be given before the command's name; those after it take precedence.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdispatch_client.cli.exit_codes import Exit, RequestFailedError

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session

TIMEOUT_DEFAULT = 30.0

Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDR",
        help="Where the daemon listens: unix:///PATH, HOST:PORT, ... Default: OPDISPATCH_ADDRESS, "
        "else a socket in your runtime folder.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help=f"The time limit of one request; 0 means no limit. Default: {TIMEOUT_DEFAULT:g}.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        dir_okay=False,
        help="A file with the token for the daemon. Default: OPDISPATCH_TOKEN, else "
        "OPDISPATCH_TOKEN_FILE.",
        show_default=False,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long to wait for a daemon that restarts. Default: 0 to connect, 30 once "
        "connected.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", show_default=False)]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", show_default=False)
]
COMMON_OPTIONS: dict[str, Any] = {
    "address": Address,
    "timeout": Timeout,
    "wait": Wait,
    "token_file": TokenFile,
    "json": Json,
    "debug": Debug,
}


@dataclass
class Settings:
    """The options common to all commands, as far as they were given."""

    address: str | None = None
    timeout: float | None = None
    wait: float | None = None
    token_file: Path | None = None
    json: bool = False
    debug: bool = False

    def update(
        self,
        *,
        address: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        token_file: Path | None = None,
        json: bool = False,
        debug: bool = False,
    ) -> None:
        """Store the options that are given."""
        self.address = address or self.address
        if timeout is not None and not timeout >= 0:
            raise typer.BadParameter("expected no negative number", param_hint="--timeout")
        self.timeout = self.timeout if timeout is None else timeout
        if wait is not None and not wait >= 0:
            raise typer.BadParameter("expected no negative number", param_hint="--wait")
        self.wait = self.wait if wait is None else wait
        self.token_file = token_file or self.token_file
        self.json |= json
        self.debug |= debug

    @property
    def seconds(self) -> float | None:
        """The timeout of one request, as sessions take it."""
        timeout = TIMEOUT_DEFAULT if self.timeout is None else self.timeout
        return timeout if 0 < timeout < inf else None

    def connect(self) -> Session:
        """Open a session with the daemon. Raises the errors of ``opdispatch_client.connect``."""
        gc.disable()  # a quarter of a second of imports, which create nothing to collect
        try:
            from opdispatch_client.blocking import connect
        finally:
            gc.enable()
        return connect(
            self.address, timeout=self.seconds, token_file=self.token_file, wait=self.wait
        )


def add_command(
    app: typer.Typer, name: str, function: Callable[..., None], **attributes: Any
) -> None:
    """Add the function to the app, with the common options; `attributes` are typer's own.

    An option of the function with the name of a common one replaces it: the common one can then
    only be given before the command's name.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    names = COMMON_OPTIONS.keys() - {each.name for each in own}
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    common = [
        inspect.Parameter(
            option,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=False if option in ("json", "debug") else None,
        )
        for option, annotation in COMMON_OPTIONS.items()
        if option in names
    ]

    def command(**values: Any) -> None:
        settings = settings_of(values.pop("context"))
        settings.update(**{option: values.pop(option) for option in names})
        with _quiet_broken_pipe(), _past_click():
            function(settings, **values)
            sys.stdout.flush()

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    command.__annotations__ = {}
    # Typer reads the parameters from here.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *common]
    )
    app.command(name, **attributes)(command)


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of this run of the command line."""
    return context.ensure_object(Settings)


@contextmanager
def _past_click() -> Iterator[None]:
    """Wrap OpdispatchErrors of the block, since Click would take some for terminal errors."""
    try:
        yield
    except (EOFError, OSError) as error:
        from opdispatch.errors import OpdispatchError  # most commands need not import it

        if isinstance(error, OpdispatchError):
            raise RequestFailedError from error
        raise


@contextmanager
def _quiet_broken_pipe() -> Iterator[None]:
    """End the command silently if the reader of its output has gone."""
    try:
        yield
    except BrokenPipeError:
        drop_unwritable_output()
        raise typer.Exit(Exit.BROKEN_PIPE) from None


def drop_unwritable_output() -> None:
    """Drop buffered output that cannot be written to stdout.

    Python flushes once more at exit; it would complain, and set an exit code of its own.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
