"""How the tangents of a call's results follow from those of its arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.schema.function_schema import FunctionSchema

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


Push = Callable[..., Sequence[Any]]
"""The tangents of a call's results, from those of its arguments, which come last."""


class ForwardRule(ABC):
    """The forward-mode derivative of one operator."""

    def __init__(self, schema: FunctionSchema) -> None:
        arguments = schema.arguments
        self.schema = schema
        self.tensors = [n for n, each in enumerate(arguments) if each.type.dispatches]
        """The places of arguments that are tensors, or lists of tensors."""
        self.written = [n for n, each in enumerate(arguments) if each.is_write]
        """The places of those that a call writes to."""
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
        """Return the tangent of each result, None for zero; of a list of tensors, a list.

        ``args`` and ``results`` are the values of the call, in the order of the schema, and
        ``tangents`` those of the arguments, at least one of which is not None; of a list of
        tensors, a list. Of an operator that writes, ``results`` are what it has written to. It is
        called at the level below, and linear in ``tangents``.
        """
