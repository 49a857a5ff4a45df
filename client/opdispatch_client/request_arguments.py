"""Arguments of requests: what protobuf cannot take is an error that says which argument it is."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable
from operator import index
from typing import Any, Final, ParamSpec, SupportsFloat, TypeVar

from opdispatch.errors import ArgumentError
from opdispatch_wire.errors import WireError
from opdispatch_wire.values import check_text

P = ParamSpec("P")
T = TypeVar("T")

_LARGEST_COUNT = 2**32 - 1


def checked(make: Callable[P, T]) -> Callable[P, T]:
    """``make``, with those of its arguments checked that are annotated as texts and numbers.

    Raises ArgumentError for what is of another type, and WireError for what cannot be sent.
    """
    signature = inspect.signature(make)
    kinds = {n: str(each.annotation) for n, each in signature.parameters.items()}
    checks = {n: check for n, kind in kinds.items() if (check := _CHECKS.get(kind))}

    @functools.wraps(make)
    def make_checked(*args: P.args, **kwargs: P.kwargs) -> T:
        given = signature.bind(*args, **kwargs)
        for name, check in checks.items():
            if (value := given.arguments.get(name)) is not None:
                given.arguments[name] = check(value, name)
        try:
            return make(*given.args, **given.kwargs)
        except UnicodeEncodeError as error:
            raise WireError(
                f"{reprlib.repr(error.object)} cannot be sent: it has half a surrogate pair at "
                f"{error.start}, as a name that is not UTF-8 has"
            ) from None

    return make_checked


def _check_count(value: Any, name: str) -> int:
    try:
        # protobuf takes no bool for a number, and an array of several has no index.
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected an int")
    if not 0 <= number <= _LARGEST_COUNT:
        raise WireError(f"{name} is {reprlib.repr(value)}; expected 0 to {_LARGEST_COUNT}")
    return number


def _check_seconds(value: Any, name: str) -> float:
    try:
        if isinstance(value, SupportsFloat):  # no text, of which float() would make a number
            return float(value)
    except (TypeError, ValueError):  # it has several, for one
        pass
    except OverflowError:
        raise WireError(f"{name} is {reprlib.repr(value)}, which is more than any float") from None
    raise ArgumentError(f"{name} is {reprlib.repr(value)}; expected a float, or None")


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "str": check_text,
    "str | None": check_text,
    "int": _check_count,
    "int | None": _check_count,
    "float | None": _check_seconds,
}
