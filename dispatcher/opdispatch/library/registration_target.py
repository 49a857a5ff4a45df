"""The target of a registration for an operator: a library, or the operator's definition.

``custom_op`` returns definitions, which know more than the operator's name. Functions that register
something for an operator accept a definition in place of the operator or its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import SchemaError
from opdispatch.library.library import Library, default_dispatcher
from opdispatch.library.registration_arguments import namespace_of


class OperatorDefinition(ABC):
    """The base of definitions; each has the full name of its operator."""

    _name: str
    _library: Library
    """Holds every registration of the operator; closed together with the definition."""

    @property
    def _qualname(self) -> str:
        """The full name, under PyTorch's attribute name."""
        return self._name

    @abstractmethod
    def register_kernel(self, *args: Any) -> Any:
        """Add a kernel, for device types."""

    @abstractmethod
    def register_fake(self, fn: Any, /) -> Any:
        """Register a fake kernel."""

    @abstractmethod
    def register_torch_dispatch(self, *args: Any) -> Any:
        """Register a function with which a mode or class handles the operator."""


DEFINITIONS: dict[str, OperatorDefinition] = {}
"""The existing definitions, by name. Guarded by the dispatcher's mutex."""

OperatorLike = str | OperatorHandle | OperatorDefinition
"""The target of a registration: an operator, its name, or its definition."""


def name_of(op: OperatorLike) -> str:
    """Return the name of an operator, ``"image::sobel"``. Raises SchemaError if there is none."""
    if isinstance(op, OperatorDefinition):
        return op._name
    if isinstance(op, OperatorHandle):
        return str(op.name)
    if not isinstance(op, str):
        raise SchemaError(f"expected an operator, its name or the result of custom_op, not {op!r}")
    return op


def definition_for(op: OperatorLike, lib: Library | None) -> OperatorDefinition | None:
    """Return the definition by ``custom_op``, whose methods replace earlier registrations.

    Return None for other operators, and if ``lib`` is given, since ``lib`` then owns the
    registration.
    """
    if lib is not None:
        return None
    if isinstance(op, OperatorDefinition):
        return op
    if isinstance(op, OperatorHandle) and op.dispatcher is not default_dispatcher():
        return None
    return DEFINITIONS.get(name_of(op))


def target_of(op: OperatorLike, lib: Library | None) -> tuple[str, Library]:
    """Return the operator's name, and the library that registers for it.

    By default it is the library of the operator's definition or, for other operators, a permanent
    one.
    """
    name = name_of(op)
    if (definition := definition_for(op, lib)) is not None:
        lib = definition._library
    if lib is None:
        dispatcher = op.dispatcher if isinstance(op, OperatorHandle) else None
        lib = Library(namespace_of(name), "FRAGMENT", dispatcher=dispatcher)
    return name, lib
