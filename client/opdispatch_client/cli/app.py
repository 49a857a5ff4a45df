"""The commands of ``opdispatch``, assembled.

Those of the client are in this package. Other packages add theirs, such as ``serve``, through the
entry-point group ``opdispatch.commands``. Each module is imported when one of its commands runs.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from opdispatch_client.cli.command import (
    Address,
    Debug,
    Json,
    Timeout,
    TokenFile,
    Wait,
    add_command,
    settings_of,
)
from opdispatch_client.cli.exit_codes import CommandError
from opdispatch_client.cli.plain_values import keep_plain_values

OWN_COMMANDS = {
    "opdispatch_client.cli.libraries": ("load", "unload", "libraries"),
    "opdispatch_client.cli.scale": ("scale",),
    "opdispatch_client.cli.rollback": ("rollback",),
    "opdispatch_client.cli.drain": ("drain",),
    "opdispatch_client.cli.interpreters": ("interpreters", "revive"),
    "opdispatch_client.cli.top": ("top",),
    "opdispatch_client.cli.health": ("health",),
    "opdispatch_client.cli.operators": ("ops", "describe", "table", "wait"),
    "opdispatch_client.cli.call": ("call",),
}
"""The commands of this package by module, in the order of the help."""
_MODULE_OF_COMMAND = {name: module for module, names in OWN_COMMANDS.items() for name in names}
ENTRY_POINT_GROUP = "opdispatch.commands"
PANELS = {"server": "Daemon", "stress": "Checks"}
"""The panels of the help, by the extra that a command's package belongs to."""

_EPILOG = (
    "Exit codes: 0 done, 1 the request failed, 2 wrong usage. "
    "Start with `opdispatch serve` in one terminal and `opdispatch load FILE` in another."
)


class _CommandGroup(TyperGroup):
    """The client's commands and those of the entry points, on demand."""

    @functools.cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The entry points by command name."""
        return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}

    def list_commands(self, ctx: Any) -> list[str]:
        others = [point for name, point in self.plugins.items() if name not in _MODULE_OF_COMMAND]
        # Panels are shown in the order of their first commands.
        first = [point.name for point in others if _extra_of(point) == "server"]
        last = [point.name for point in others if point.name not in first]
        return [*first, *_MODULE_OF_COMMAND, *last]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or a placeholder for help pages if it is not imported yet."""
        if cmd_name in _MODULE_OF_COMMAND:
            self._add(cmd_name)
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in self.plugins:
            point = self.plugins[cmd_name]
            return _as_command(point, _nothing, help=_summarize(point))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        is_own = args[0] in _MODULE_OF_COMMAND
        if not is_own and args[0] in self.plugins:
            self._add(args[0])
            args = [args[0], *_words_before(ctx, args), *args[1:]]
        elif not is_own:
            for name in self.list_commands(ctx):  # an unknown name: similar ones are suggested
                self._add(name)
        return super().resolve_command(ctx, args)

    def _add(self, name: str) -> None:
        """Import a command, unless it is there."""
        if name in self.commands:
            return
        if name in _MODULE_OF_COMMAND:
            self.commands.update(_own_commands(_MODULE_OF_COMMAND[name]))
        else:
            self.commands[name] = _load_plugin(self.plugins[name])


def _own_commands(module: str) -> Mapping[str, Any]:
    """Return the commands of a module of this package, by name."""
    app = typer.Typer(callback=_nothing, rich_markup_mode="rich", pretty_exceptions_enable=False)
    import_module(module).register(app)
    group = typer.main.get_command(app)
    if not isinstance(group, TyperGroup):
        raise TypeError(f"typer made a {type(group).__name__} of {module}")
    keep_plain_values(group)
    return group.commands


@functools.cache
def build_app() -> TyperGroup:
    """Return the whole command line, ready to run any number of times."""
    app = typer.Typer(
        name="opdispatch",
        cls=_CommandGroup,
        callback=_common,
        epilog=_EPILOG,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    group = typer.main.get_command(app)
    if not isinstance(group, TyperGroup):
        raise TypeError(f"typer made a {type(group).__name__} of the app")
    keep_plain_values(group)
    return group


def _common(
    context: typer.Context,
    address: Address = None,
    timeout: Timeout = None,
    wait: Wait = None,
    token_file: TokenFile = None,
    json: Json = False,
    debug: Debug = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            show_default=False,
            is_eager=True,
            callback=lambda value: _print_version() if value else None,
        ),
    ] = False,
) -> None:
    """PyTorch's operator dispatcher as a service: load kernel libraries, call operators."""
    settings_of(context).update(
        address=address, timeout=timeout, wait=wait, token_file=token_file, json=json, debug=debug
    )


def _print_version() -> None:
    print(f"opdispatch {version('opdispatch')}")
    raise typer.Exit


def _words_before(context: Any, args: list[str]) -> list[str]:
    """Return the common options before a plugin's name, for the plugin to parse as its own.

    Without --debug, which ``main`` handles. An address after the name takes precedence.
    """
    given = context.params
    is_given_later = any(re.match("--(address|listen|daemon)(=|$)", word) for word in args)
    address = None if is_given_later else given.get("address")
    return [
        *(("--address", address) if address else ()),
        *(("--timeout", f"{given['timeout']:g}") if given.get("timeout") is not None else ()),
        *(("--wait", f"{given['wait']:g}") if given.get("wait") is not None else ()),
        *(("--token-file", str(given["token_file"])) if given.get("token_file") else ()),
        *(("--json",) if given.get("json") else ()),
    ]


def _nothing() -> None:
    pass


def _as_command(point: EntryPoint, function: Callable[..., Any], **attributes: Any) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    panel = PANELS.get(_extra_of(point), PANELS["server"])
    add = add_command if _takes_settings(function) else _add_plain_command
    add(app, point.name, function, rich_help_panel=panel, **attributes)
    command = typer.main.get_command(app)
    keep_plain_values(command)
    return command


def _load_plugin(point: EntryPoint) -> Any:
    """Return the command of an entry point, or one that says which extra it needs."""
    gc.disable()  # a quarter of a second of imports, which create nothing to collect
    try:
        return _as_command(point, _explains_missing_package(point, point.load()))
    except ModuleNotFoundError as error:
        function = _missing(point, error)
        takes_all = {"allow_extra_args": True, "ignore_unknown_options": True}
        return _as_command(point, function, context_settings=takes_all)
    finally:
        gc.enable()


def _summarize(point: EntryPoint) -> str:
    """Return the documentation of an entry point's function, without importing its module."""
    spec = find_spec(point.module)
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            return ast.get_docstring(node) or ""
    return ""


def _takes_settings(function: Callable[..., Any]) -> bool:
    """Return whether a function is a command like those of the client: see ``add_command``."""
    return next(iter(inspect.signature(function).parameters), None) == "settings"


def _add_plain_command(
    app: typer.Typer, name: str, function: Callable[..., Any], **attributes: Any
) -> None:
    app.command(name, **attributes)(function)


def _extra_of(point: EntryPoint) -> str:
    """Return the extra that a command needs, which is named like its package."""
    return point.module.partition(".")[0].removeprefix("opdispatch_")


def _explains_missing_package(
    point: EntryPoint, function: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            raise _missing_package(point, error) from error

    return run


def _missing(point: EntryPoint, error: ModuleNotFoundError) -> Callable[[], None]:
    def run() -> None:
        raise _missing_package(point, error) from error

    return run


def _missing_package(point: EntryPoint, error: ModuleNotFoundError) -> Exception:
    package = (error.name or "").partition(".")[0]
    if package.startswith("opdispatch") and package in sys.modules:
        return error  # our own mistake, not a missing package
    return CommandError(
        f"`opdispatch {point.name}` needs the package {package!r}, which is not installed; "
        f"install opdispatch[{_extra_of(point)}]"
    )
