"""Where a registration goes that names an operator: to a library, or to what has defined it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from opdispatch.library import Library, default_dispatcher
from opdispatch.library_arguments import namespace_of
from opdispatch.operator_definition import (
    DEFINITIONS,
    OperatorDefinition,
    OperatorLike,
    name_of,
)
from opdispatch.operator_handle import OperatorHandle

if TYPE_CHECKING:
    from opdispatch.custom_operator import CustomOpDef


def definition_for(op: OperatorLike, lib: Library | None) -> CustomOpDef[..., object] | None:
    """What ``custom_op`` has defined by that name: its methods replace what they registered before.

    None for other operators, and where a library is given, with which it is to be undone.
    """
    if lib is not None:
        return None
    known: OperatorDefinition | None
    if isinstance(op, OperatorDefinition):
        known = op
    elif isinstance(op, OperatorHandle) and op.dispatcher is not default_dispatcher():
        known = None
    else:
        known = DEFINITIONS.get(name_of(op))
    return cast("CustomOpDef[..., object] | None", known)


def target_of(op: OperatorLike, lib: Library | None) -> tuple[str, Library]:
    """The operator's name, and the library that registers for it: without one, one that stays."""
    name = name_of(op)
    if lib is None:
        dispatcher = op.dispatcher if isinstance(op, OperatorHandle) else None
        lib = Library(namespace_of(name), "FRAGMENT", dispatcher=dispatcher)
    return name, lib
