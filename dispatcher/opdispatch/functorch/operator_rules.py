"""Cache of an operator's rules and the schema properties that transform levels use.

It is kept with the kernel for FuncTorchDynamicLayerFrontMode until the operator's registrations
change (``KernelFunction.from_operator``), so calls perform no lookups, however many levels there
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.functorch.forward_rule import ForwardRule
from opdispatch.keys.dispatch_key import DispatchKey

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

NOT_TAKEN: Any = object()
"""Returned by `DynamicLayer.take` for a call that needs the full path through `process`."""


class OperatorRules:
    """The rules of one operator, valid until its registrations change."""

    __slots__ = (
        "asks_vmap_mode",
        "batching_rule",
        "forward_rule",
        "gives_views",
        "has_keywords",
        "makes_one",
        "op",
        "places",
        "schema",
        "signature",
    )

    def __init__(self, op: OperatorHandle) -> None:
        self.op = op
        self.signature = op.call_signature
        self.schema = self.signature.schema
        self.places = {each.name: place for place, each in enumerate(self.schema.arguments)}
        """Index of each argument by name."""
        self.has_keywords = bool(self.signature.keyword_only_names)
        self.makes_one = len(self.schema.returns) == 1 and not self.signature.written
        """Whether the operator writes to no argument and returns exactly one value."""
        self.gives_views = any(
            each.alias_info is not None and not each.alias_info.is_write
            for each in self.schema.returns
        )
        self.asks_vmap_mode = op.asks_vmap_mode
        self.batching_rule: Callable[..., Any] | None = _find_rule(
            op, DispatchKey.FuncTorchBatched, "batching_rule"
        )
        self.forward_rule: ForwardRule | None = _find_rule(
            op, DispatchKey.FuncTorchGradWrapper, "forward_rule"
        )

    def call(self, args: Sequence[Any]) -> Any:
        """Call the operator with all its arguments, in the order of the schema."""
        if not self.has_keywords:
            return self.op(*args)
        positional, named = self.signature.split(args)
        return self.op(*positional, **named)


def _find_rule(op: OperatorHandle, key: DispatchKey, name: str) -> Any:
    """Return the rule that the kernel for ``key`` was built from, or None for any other kernel."""
    kernel = op.kernel_for_dispatch_key(key)
    return None if kernel is None else getattr(kernel.function, name, None)
