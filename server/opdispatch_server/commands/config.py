"""``opdispatch config``: the settings that a command would run with, and where they come from."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from opdispatch_server.commands.configuration_file import Setting, settings_of
from opdispatch_server.commands.options import ConfigurationFile
from opdispatch_server.commands.running import serve, worker
from opdispatch_server.daemon_configuration import default_state_folder, default_worker_count
from opdispatch_wire.addresses import default_address
from opdispatch_wire.printable import printable_line


class ConfigAction(enum.StrEnum):
    """The action to take."""

    SHOW = "show"


class Configured(enum.StrEnum):
    """The command whose settings are shown."""

    SERVE = "serve"
    WORKER = "worker"


_FUNCTIONS: dict[Configured, Any] = {Configured.SERVE: serve, Configured.WORKER: worker}
_FOUND_BY_SERVE: dict[str, Callable[[], Any]] = {
    "listen": lambda: [default_address()],
    "state": default_state_folder,
    "workers": lambda: str(default_worker_count()),
}


def config(
    action: Annotated[ConfigAction, typer.Argument(help="What to do.", show_default=False)],
    command: Annotated[
        Configured, typer.Argument(help="The command whose settings to show.")
    ] = Configured.SERVE,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- OPTION...",
            help="Options to pass to that command.",
            show_default=False,
        ),
    ] = None,
    file: ConfigurationFile = None,
    origin: Annotated[
        bool,
        typer.Option(
            "--origin",
            help="Show the source of each setting, and the weaker sources that it overrides.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Show the settings that `serve` or `worker` would run with, as a configuration file.

    Options are stronger than environment variables, these than the file, and that than defaults.
    What is not set, and has no default of its own, is a comment.
    """
    del action  # there is only one
    app = typer.Typer(add_completion=False)
    app.command(command.value)(_FUNCTIONS[command])
    words = [*(("--config", str(file)) if file else ()), *(options or ())]
    context = typer.main.get_command(app).make_context(command.value, words)
    print(f"[{command.value}]")
    for each in settings_of(context, context.params["config"]):
        setting = _effective(each) if command is Configured.SERVE else each
        print(printable_line(_line(setting, with_origin=origin)))


def _effective(setting: Setting) -> Setting:
    """Return the setting, with the value that `serve` determines by itself if it has none."""
    find = _FOUND_BY_SERVE.get(setting.option)
    return setting if setting.value or find is None else setting._replace(value=find())


def _line(setting: Setting, *, with_origin: bool) -> str:
    line = f"# {setting.option} is not set"
    if setting.value is not None:
        line = f"{setting.option} = {_toml(setting.value)}"
    if not with_origin:
        return line
    return "; over ".join((f"{line}  # {setting.origin}", *setting.over[:-1]))


def _toml(value: Any) -> str:
    # TOML accepts JSON's strings, numbers and booleans, and arrays of these.
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)
