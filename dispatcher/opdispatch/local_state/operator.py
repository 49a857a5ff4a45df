"""``Operator``: the interface of operators for layers below the dispatcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import OperatorName


class Operator(Protocol):
    """The part of an ``OperatorHandle`` that can be described without the dispatcher."""

    @property
    def name(self) -> OperatorName:
        """Its name."""

    @property
    def signature(self) -> Any:
        """Its ``Signature``, a class of the higher layer ``boxing/``.

        Raises OperatorNotFoundError.
        """

    @property
    def call_signature(self) -> Any:
        """The signature of a call in progress: it stays if the operator is unregistered."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in schema order, with defaults. Raises ArgumentError."""

    def dispatch_keys(self, stack: Sequence[Any]) -> DispatchKeySet:
        """Return the keys with which a call with these arguments is dispatched, in this task."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for the keys of the arguments."""

    def redispatch(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for exactly ``keys``, whatever keys the arguments have."""
