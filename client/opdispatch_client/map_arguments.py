"""The arguments of ``map``: the number of calls in flight, and the arguments of each call."""

from __future__ import annotations

import itertools
import reprlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch_client.request_arguments import check_int

IN_FLIGHT_DEFAULT = 64
"""Default number of calls of one ``map`` that are in flight at a time."""


def check_in_flight(in_flight: int) -> int:
    """Return the given count of calls in flight.

    Raises ValueError unless it is 1 or more, and ArgumentError.
    """
    in_flight = check_int(in_flight, "in_flight")
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; expected 1 or more")
    return min(in_flight, sys.maxsize)


def arguments_of_calls(list_of_args: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Return an iterator over the arguments of each call.

    Raises ArgumentError if ``list_of_args`` is not iterable; the iterator raises it for an item
    that is not iterable.
    """
    try:
        items = iter(list_of_args)
    except TypeError:
        raise ArgumentError(
            f"list_of_args is {reprlib.repr(list_of_args)}; expected a tuple of arguments for each "
            "call"
        ) from None
    return map(_as_arguments, items, itertools.count())


def _as_arguments(item: Iterable[Any], place: int) -> tuple[Any, ...]:
    try:
        items = iter(item)
    except TypeError:
        raise ArgumentError(
            f"list_of_args[{place}] is {reprlib.repr(item)}; expected the arguments of a call"
        ) from None
    return tuple(items)
