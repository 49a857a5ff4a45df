"""The names of operators as clients write them."""

from __future__ import annotations

from opdispatch import OperatorName, OperatorNotFoundError, SchemaError

LONGEST_NAME = 4096
"""The longest name that is looked up, in characters."""


def parse_operator_name(name: str) -> OperatorName:
    """Parse a name as a client wrote it.

    Raises OperatorNotFoundError for a name that no operator can have.
    """
    if len(name) > LONGEST_NAME:
        raise OperatorNotFoundError(
            f"there is no operator {name[:50]!r}..., a name of {len(name)} characters",
            hint=f"at most {LONGEST_NAME} are looked up",
        )
    try:
        return OperatorName.parse(name)
    except SchemaError:
        raise OperatorNotFoundError(
            f"there is no operator {name!r}",
            hint="the name of an operator is like namespace::name, or namespace::name.overload",
            operator=name,
        ) from None
