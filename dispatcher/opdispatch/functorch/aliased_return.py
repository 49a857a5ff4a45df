"""Find the argument that a return of a mutating operator aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.schema.function_schema import FunctionSchema


def original_of_write(
    schema: FunctionSchema, place: int, returned: Any, below: Sequence[Any], given: Sequence[Any]
) -> Any:
    """Return the argument that the return at index ``place`` aliases, as the caller passed it.

    ``given`` has the arguments of this level and ``below`` those unwrapped for the level below. The
    argument is found by identity; if the kernel returned another object, written arguments are
    matched with returns in schema order.
    """
    written = [n for n, argument in enumerate(schema.arguments) if argument.is_write]
    for number in written:
        if below[number] is returned:
            return given[number]
    earlier = sum(
        each.alias_info is not None and each.alias_info.is_write for each in schema.returns[:place]
    )
    return given[written[min(earlier, len(written) - 1)]]
