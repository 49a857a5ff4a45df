"""``KernelOperator``: the interface of operators that kernels use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from opdispatch.boxing.signature import Signature
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.operator import Operator


class KernelOperator(Operator, Protocol):
    """The part of an ``OperatorHandle`` that kernels need."""

    @property
    def signature(self) -> Signature:
        """The ``Signature``, which binds arguments. Raises OperatorNotFoundError if undefined."""

    @property
    def call_signature(self) -> Signature:
        """The signature of a call in progress: it stays if the operator is unregistered."""

    def redispatch_function(self, keys: DispatchKeySet) -> Callable[..., Any]:
        """Return the kernel for exactly ``keys`` as a function of converted arguments."""
