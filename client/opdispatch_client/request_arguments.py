"""Checks of session methods' arguments: the error for a wrong type names the argument.

Without them, protobuf, gRPC or Python would raise errors about their own internals.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import reprlib
from collections.abc import Callable
from operator import index
from typing import Any, Final, ParamSpec, SupportsFloat, TypeVar

import numpy as np

from opdispatch.errors import ArgumentError
from opdispatch_wire.errors import WireError
from opdispatch_wire.values import check_text

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_TIMEOUT = 365 * 86400.0
"""The longest wait: a year, in seconds. gRPC and Python's locks reject some larger numbers."""

_LARGEST_COUNT = 2**32 - 1


def checked(make: Callable[P, T]) -> Callable[P, T]:
    """Return ``make`` with checks of arguments annotated with one of ``_CHECKS``, or None.

    Raises ArgumentError for a value of another type, and WireError for one that cannot be sent.
    """
    signature = inspect.signature(make)
    kinds = {n: str(each.annotation) for n, each in signature.parameters.items()}
    checks = {n: _CHECKS[of] for n, kind in kinds.items() if (of := _without_none(kind)) in _CHECKS}
    may_be_none = {n for n, kind in kinds.items() if _without_none(kind) != kind}

    @functools.wraps(make)
    def make_checked(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(*args, **kwargs)
        for name, check in checks.items():
            if name in given.arguments:
                value = given.arguments[name]
                if value is not None or name not in may_be_none:
                    given.arguments[name] = check(value, name)
        try:
            return make(*given.args, **given.kwargs)
        except UnicodeEncodeError as error:
            raise WireError(
                f"{reprlib.repr(error.object)} cannot be sent: it has a lone surrogate at index "
                f"{error.start}, as a name that is not UTF-8 has"
            ) from None

    return make_checked


def check_int(value: Any, name: str) -> int:
    """Return ``value`` as an int.

    Raises ArgumentError for anything but an int, including a bool.
    """
    try:
        # protobuf rejects a bool; index() raises TypeError for an array of several elements.
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected an int")
    return number


def check_seconds(value: Any, name: str) -> float:
    """Return ``value`` as a float.

    Raises ArgumentError for anything but a number, and WireError.
    """
    try:
        if isinstance(value, SupportsFloat):  # strings are excluded, which float() would parse
            return float(value)
    except (TypeError, ValueError):  # such as an array of several elements
        pass
    except OverflowError:
        raise WireError(f"{name} is {reprlib.repr(value)}, which is more than any float") from None
    raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected a float, or None")


def check_timeout(value: Any, name: str = "timeout") -> float | None:
    """Return the timeout of one call in seconds; None, for the session's timeout, unchanged.

    Raises ArgumentError for anything but a positive number.
    """
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, bool | np.bool_) else check_seconds(value, name)
    except WireError:  # more than any float
        return math.inf
    if seconds > 0:
        return seconds if seconds <= LONGEST_TIMEOUT else math.inf
    raise ArgumentError(
        f"{name} is {reprlib.repr(value)}; expected a positive number of seconds, or None"
    )


def check_flag(value: Any, name: str) -> bool:
    """Return ``value`` as a bool.

    Raises ArgumentError for anything but a bool: the string "no" would be true.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected a bool")


def check_callable(value: Any, name: str) -> Any:
    """Return ``value``. Raises ArgumentError unless it is None or callable."""
    if value is None or callable(value):
        return value
    raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected a function, or None")


def _check_count(value: Any, name: str) -> int:
    number = check_int(value, name)
    if not 0 <= number <= _LARGEST_COUNT:
        raise WireError(f"{name} is {reprlib.repr(value)}; expected 0 to {_LARGEST_COUNT}")
    return number


def check_path(value: Any, name: str) -> Any:
    """Return ``value``. Raises ArgumentError unless it is a str or the path of a file."""
    if not _is_path(value):
        raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected a str, or a path")
    return value


def _check_requirements(value: Any, name: str) -> Any:
    if _is_path(value):
        return value
    lines = None
    if not isinstance(value, bytes):
        with contextlib.suppress(TypeError):  # it is not iterable
            lines = list(value)
    if lines is None or not all(isinstance(line, str) for line in lines):
        raise ArgumentError(
            f"{name} is {reprlib.repr(value)}; expected the path of a requirements file, or its "
            "lines"
        )
    return lines


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)


def _without_none(annotation: str) -> str:
    return annotation.removesuffix(" | None")


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "str": check_text,
    "int": _check_count,
    "float": check_seconds,
    "bool": check_flag,
    "str | os.PathLike[str]": check_path,
    "Requirements": _check_requirements,
}


def as_list(values: Any) -> list[Any]:
    """Return the values as a list, whether one or several were given."""
    return list(values) if isinstance(values, list | tuple) else [values]
