"""Settings of ``serve`` and ``worker`` from a TOML file.

    option  >  environment variable  >  file  >  default

A file has a table for each of the two commands, with their options as keys: ``[serve]``,
``load-timeout``. Typer applies this precedence: what is read here becomes the ``default_map`` of
its context.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, NoReturn, get_args

import typer

TABLES = ("serve", "worker")

_EXPECTED = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a string",
    list: "an array of strings",
}


class Setting(NamedTuple):
    """One option's value, its source, and the sources that it overrides."""

    option: str
    value: Any
    origin: str
    over: tuple[str, ...]


def default_configuration_file() -> Path:
    """Return ``$XDG_CONFIG_HOME/opdispatch/config.toml``, or the standard default for it."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = base if base.is_absolute() else Path.home() / ".config"
    return home / "opdispatch" / "config.toml"


def use_configuration_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the command's table of a file the defaults of its options; return the file's path.

    Without a path, the file is ``default_configuration_file``, if that exists. Raises
    typer.BadParameter for a file that cannot be read, an unknown table or key, and an invalid
    value.
    """
    if path is None:
        path = default_configuration_file()
        if not path.exists():
            return None
    context.default_map = _read_table(context, path)
    return path


def settings_of(context: Any, path: Path | None) -> Iterator[Setting]:
    """Yield every setting of a command's context, in the order of its options."""
    for parameter in _options(context):
        found = [*_sources(context, parameter, path)]
        yield Setting(
            _key(parameter),
            context.params[parameter.name],
            found[0][0],
            tuple(map(_said, found[1:])),
        )


def reread(context: typer.Context, path: Path | None) -> dict[str, Any]:
    """Return the values of all options, rereading the file for those that came from it.

    ``context`` is left unchanged. Raises typer.BadParameter as ``use_configuration_file`` does.
    """
    again = typer.Context(context.command, parent=context.parent, info_name=context.info_name)
    use_configuration_file(again, path)
    from_file = again.default_map or {}
    values = dict(context.params)
    for parameter in _options(context):
        if _is_given(context, parameter):
            continue
        value = from_file.get(parameter.name, parameter.get_default(again))
        values[parameter.name] = parameter.process_value(again, value)
    return values


def _read_table(context: typer.Context, path: Path) -> dict[str, Any]:
    """Return the values in the command's table by parameter name, each checked by its option."""
    import tomllib  # few daemons have such a file

    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        _refuse(path, f"is not TOML: {error}")
    for name, table in document.items():
        if name not in TABLES:
            _refuse(path, f"unknown table {name!r}{_suggestion(name, TABLES)}")
        if not isinstance(table, dict):
            _refuse(path, f"{name} must be a table, [{name}]")
    return _checked(context, path, document.get(str(context.info_name), {}))


def _checked(context: typer.Context, path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    options = {_key(each): each for each in _options(context)}
    values = {}
    for key, value in table.items():
        if key not in options:
            _refuse(
                path,
                f"unknown key {key!r} in [{context.info_name}]{_suggestion(key, options)}",
            )
        parameter = options[key]
        kind = _kind(parameter)
        if not _has_kind(value, kind):
            _refuse(path, f"{key} = {value!r}: expected {_EXPECTED[kind]}")
        value = str(value) if kind is str else value  # such as workers = 2
        try:
            parameter.process_value(context, value)
        except typer.BadParameter as error:
            _refuse(path, f"{key} = {value!r}: {error.message}")
        values[parameter.name] = value
    return values


def _kind(parameter: Any) -> type:
    """Return which key of ``_EXPECTED`` describes an option's values."""
    if parameter.multiple:
        return list
    annotation: type = parameter.type_descriptor.annotation
    return next((each for each in get_args(annotation) if each is not NoneType), annotation)


def _has_kind(value: object, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(type(each) is str for each in value)
    return type(value) in {float: (int, float), str: (str, int), Path: (str,)}.get(kind, (kind,))


def _options(context: typer.Context) -> list[Any]:
    """Return the options that a file may set: all except those about the command line itself."""
    own = ("config", "help")
    return [each for each in context.command.get_params(context) if each.name not in own]


def _key(parameter: Any) -> str:
    """Return an option's key in a file: its first name, without the dashes."""
    return str(parameter.opts[0]).lstrip("-")


def _is_given(context: typer.Context, parameter: Any) -> bool:
    """Return whether a value came from the command line or from the environment."""
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _sources(
    context: typer.Context, parameter: Any, path: Path | None
) -> Iterator[tuple[str, object]]:
    """Yield each source that has a value for an option, with that value, the strongest first."""
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "COMMANDLINE":
        yield parameter.opts[0], context.params[parameter.name]
    text = parameter.resolve_envvar_value(context)
    if text is not None:
        yield str(parameter.envvar), text
    table = context.default_map or {}
    if parameter.name in table:
        yield str(path), table[parameter.name]
    yield "default", parameter.get_default(context)


def _said(source: tuple[str, object]) -> str:
    place, value = source
    return f"{value!r} ({place})"


def _suggestion(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word.replace("_", "-"), known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


def _refuse(path: Path, what: str) -> NoReturn:
    raise typer.BadParameter(f"{path}: {what}", param_hint="--config")
