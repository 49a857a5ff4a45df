"""``OperatorDefinition``: what stands for an operator whose definition knows more than its name.

``custom_op`` gives one. Functions that register something for an operator take it in the place of
the operator or its name, and leave it to the definition's own methods.
"""

from __future__ import annotations

from opdispatch.errors import SchemaError
from opdispatch.operator_handle import OperatorHandle


class OperatorDefinition:
    """A base for definitions; each has the whole name of its operator."""

    _name: str

    @property
    def _qualname(self) -> str:
        """The whole name, by PyTorch's name for it."""
        return self._name


DEFINITIONS: dict[str, OperatorDefinition] = {}
"""The definitions that stand, by name. Guarded by the dispatcher's mutex."""

OperatorLike = str | OperatorHandle | OperatorDefinition
"""What registrations are for: an operator, its name, or its definition."""


def name_of(op: OperatorLike) -> str:
    """The name of an operator, ``"image::sobel"``. Raises SchemaError for what is none."""
    if isinstance(op, OperatorDefinition):
        return op._name
    if isinstance(op, OperatorHandle):
        return str(op.name)
    if not isinstance(op, str):
        raise SchemaError(
            f"an operator, its name or what custom_op has defined was expected, not {op!r}"
        )
    return op
