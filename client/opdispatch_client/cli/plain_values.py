"""Parameter values that do not need typer's conversion.

Typer converts with pydantic, which it imports for the first value: that takes a quarter of the
startup time of ``opdispatch serve``. Most values are defaults, strings, plain numbers or valid
paths, whose conversion is obvious. All others, and so all errors, are left to typer.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from typer.core import TyperGroup

_NUMBER: Final = {int: re.compile(r"[0-9]{1,18}"), float: re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")}
_NOT_PLAIN: Final = object()


def keep_plain_values(command: Any) -> None:
    """Make a Typer command, and its subcommands, accept plain values unchanged."""
    # Not its list of parameters, which lacks --help: that is created when first requested.
    command.get_params = functools.partial(_parameters, command.get_params)
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            keep_plain_values(each)


def _parameters(get: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    parameters = get(context)
    for parameter in parameters:
        if "process_value" not in vars(parameter):
            process = functools.partial(_process, parameter, parameter.process_value)
            parameter.process_value = process
    return parameters


def _process(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    plain = _NOT_PLAIN if parameter.required and not value else _read(parameter, value)
    if plain is _NOT_PLAIN:
        return convert(context, value)
    return plain if parameter.callback is None else parameter.callback(context, parameter, plain)


def _read(parameter: Any, value: Any) -> Any:
    several = parameter.multiple or parameter.nargs == -1
    if value is None:
        return () if several else None
    descriptor = getattr(parameter, "type_descriptor", None)  # missing in other versions of typer
    if descriptor is None or descriptor.parameter_info.parser is not None:
        return _NOT_PLAIN
    kind, details = descriptor.annotation, descriptor.parameter_info
    if not several:
        return _read_one(kind, details, value)
    if typing.get_origin(kind) is not list or not isinstance(value, list | tuple):
        return _NOT_PLAIN
    values = [_read_one(typing.get_args(kind)[0], details, each) for each in value]
    return _NOT_PLAIN if _NOT_PLAIN in values else values


def _read_one(kind: Any, details: Any, value: Any) -> Any:
    if kind in _NUMBER:
        return _read_number(kind, details, value)
    if type(value) is str and kind is Path:
        return _read_path(details, value)
    return value if kind is str and type(value) is str else _NOT_PLAIN


def _read_number(kind: type[int] | type[float], details: Any, value: Any) -> Any:
    if type(value) is str and _NUMBER[kind].fullmatch(value):
        value = kind(value)
    if type(value) is not kind:
        return _NOT_PLAIN
    too_low = details.min is not None and not value >= details.min
    too_high = details.max is not None and not value <= details.max
    return _NOT_PLAIN if too_low or too_high else value


def _read_path(details: Any, text: str) -> Any:
    if details.writable or details.resolve_path or details.allow_dash or details.path_type:
        return _NOT_PLAIN
    try:
        mode = os.stat(text).st_mode
    except FileNotFoundError:
        return _NOT_PLAIN if details.exists else Path(text)
    except (OSError, ValueError):
        return _NOT_PLAIN
    is_right = details.dir_okay if stat.S_ISDIR(mode) else details.file_okay
    return Path(text) if is_right and os.access(text, os.R_OK) else _NOT_PLAIN
