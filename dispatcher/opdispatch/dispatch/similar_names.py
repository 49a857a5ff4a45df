"""Names that a caller may have meant who wrote another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import OperatorName

# To compare with more of them would keep the caller waiting for too long.
_MOST_COMPARED = 1000
# A longer name is not made clearer by a similar one.
_LONGEST = 200
# In a large registry, so many characters behind the namespace have to be right.
_BEGINNING = 2


def similar_operators(
    name: str, operators: Sequence[OperatorName], find_schema: Callable[[OperatorName], object]
) -> list[str]:
    """Return at most two names that look like it, of operators with a schema.

    Of many operators, only those are compared that begin like it, unless these are many, too.
    """
    import difflib  # for errors alone

    if len(name) > _LONGEST:
        return []
    if len(operators) > _MOST_COMPARED:
        namespace, separator, rest = name.rpartition("::")
        beginning = f"{namespace}{separator}{rest[:_BEGINNING]}"
        operators = [each for each in operators if each.name.startswith(beginning)]
    if len(operators) > _MOST_COMPARED:
        return []
    return difflib.get_close_matches(name, map(str, filter(find_schema, operators)), n=2)
