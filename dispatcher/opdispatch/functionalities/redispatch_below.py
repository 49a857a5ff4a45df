"""Fallback that redispatches below its key without further effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


def redispatch_below(key: DispatchKey) -> KernelFunction:
    """Return a boxed fallback for ``key`` that redispatches to the keys below it."""
    below = DispatchKeySet.full_after(key)

    def redispatch(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        op.redispatch_boxed(keys & below, stack)

    return KernelFunction.from_boxed(redispatch)
