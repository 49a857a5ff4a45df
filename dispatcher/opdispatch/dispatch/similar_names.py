"""Suggestions of similar names for an unknown name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import OperatorName

# Comparing with more names would take too long.
_MOST_COMPARED = 1000
# Longer names get no suggestion.
_LONGEST = 200
# In a large registry, this many characters after the namespace must match.
_BEGINNING = 2


def similar_operators(
    name: str, operators: Sequence[OperatorName], find_schema: Callable[[OperatorName], object]
) -> list[str]:
    """Return at most two similar names, of operators with a schema.

    Of many operators, only those with the same beginning are compared, unless these are many, too.
    """
    import difflib  # only errors need it

    if len(name) > _LONGEST:
        return []
    if len(operators) > _MOST_COMPARED:
        namespace, separator, rest = name.rpartition("::")
        beginning = f"{namespace}{separator}{rest[:_BEGINNING]}"
        operators = [each for each in operators if each.name.startswith(beginning)]
    if len(operators) > _MOST_COMPARED:
        return []
    return difflib.get_close_matches(name, map(str, filter(find_schema, operators)), n=2)
