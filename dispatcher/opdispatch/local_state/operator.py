"""``Operator``: what floors below the dispatcher know of the operators that they are handed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import OperatorName


class Operator(Protocol):
    """The part of an ``OperatorHandle`` that needs no dispatcher to be described."""

    @property
    def name(self) -> OperatorName:
        """Its name."""

    @property
    def signature(self) -> Any:
        """Its ``Signature``: ``boxing/``, above, has that class. Raises OperatorNotFoundError."""

    @property
    def call_signature(self) -> Any:
        """The signature of a call that is under way: it stays if the operator is unregistered."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in schema order, with defaults. Raises ArgumentError."""

    def dispatch_keys(self, stack: Sequence[Any]) -> DispatchKeySet:
        """Return the keys that a call with these arguments is dispatched with, in this task."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for the keys of the arguments."""

    def redispatch(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for exactly ``keys``, whatever keys the arguments have."""
