"""Which argument a return is that an operator has written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.schema.function_schema import FunctionSchema


def original_of_write(
    schema: FunctionSchema, place: int, returned: Any, below: Sequence[Any], given: Sequence[Any]
) -> Any:
    """Return the argument that the return at ``place`` is.

    As it was ``given``, not as it is ``below``.

    It is the one that is returned; or, of a kernel that returns something else, the one whose turn
    it is.
    """
    written = [n for n, argument in enumerate(schema.arguments) if argument.is_write]
    for number in written:
        if below[number] is returned:
            return given[number]
    earlier = sum(
        each.alias_info is not None and each.alias_info.is_write for each in schema.returns[:place]
    )
    return given[written[min(earlier, len(written) - 1)]]
