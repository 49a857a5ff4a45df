"""Forward-mode rules: compute the tangents of results from those of arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.schema.function_schema import FunctionSchema

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


Push = Callable[..., Sequence[Any]]
"""Function that returns the tangents of the results; the tangents of the arguments come last."""


class ForwardRule(ABC):
    """The forward-mode derivative of one operator."""

    def __init__(self, schema: FunctionSchema) -> None:
        arguments = schema.arguments
        self.schema = schema
        self.tensors = [n for n, each in enumerate(arguments) if each.type.dispatches]
        """Indices of the arguments that are tensors or lists of tensors."""
        self.written = [n for n, each in enumerate(arguments) if each.is_write]
        """Indices of the arguments that the operator writes to."""
        self.has_keywords = any(each.kwarg_only for each in arguments)
        self.gives_views = any(
            each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
        )

    def call(self, op: OperatorHandle, args: Sequence[Any]) -> Any:
        """Call the operator with all its arguments, in the order of the schema."""
        if not self.has_keywords:
            return op(*args)
        positional, named = op.call_signature.split(args)
        return op(*positional, **named)

    @abstractmethod
    def push(
        self,
        op: OperatorHandle,
        args: Sequence[Any],
        results: Sequence[Any],
        tangents: Sequence[Any],
    ) -> Sequence[Any]:
        """Return the tangent of each result: None for zero, and a list for a list of tensors.

        ``args`` and ``results`` are the values of the call in schema order; for a mutating
        operator, ``results`` are the arguments it has written to. ``tangents`` are those of the
        arguments, with a list for a list of tensors; at least one is not None. The rule runs at the
        level below and must be linear in ``tangents``.
        """
