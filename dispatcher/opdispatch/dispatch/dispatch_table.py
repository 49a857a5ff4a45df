"""The kernel that serves a dispatch key, by order of precedence, as a pure function.

Mirrors ``OperatorEntry::computeDispatchTableEntryWithDebug`` of PyTorch 2.13.

Note [Undefined borrows composite kernels]
    A call without tensor arguments lands in the Undefined slot. Factory functions with a
    composite kernel should work there, so that slot takes the kernels of both explicit composite
    aliases and of the implicit one, although no alias includes Undefined.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from opdispatch.keys.dispatch_key import ALIAS_KEYS, DispatchKey, is_alias_key
from opdispatch.keys.dispatch_key_set import (
    AUTOGRADOTHER_BACKENDS,
    RUNTIME_KEYS,
    DispatchKeySet,
    get_backend_key_set_from_autograd,
    is_included_in_alias,
)

if TYPE_CHECKING:
    from opdispatch.dispatch.registration import Registration

K = DispatchKey

MISSING = "missing"
AMBIGUOUS = "ambiguous autogradother"

EXPANDS: dict[DispatchKey, frozenset[DispatchKey]] = {
    alias: frozenset(key for key in RUNTIME_KEYS if is_included_in_alias(key, alias))
    for alias in ALIAS_KEYS
}
"""The runtime keys whose slots a kernel of each alias may fill."""


_REGISTRABLE_KEYS = tuple(key for key in DispatchKey if key and not is_alias_key(key))


@functools.cache  # most runtime keys share a few sets
def _registrable_keys_in(keys: DispatchKeySet) -> frozenset[DispatchKey]:
    # Functionalities are included: a kernel for Dense itself fills no slot, but counts as a kernel
    # of the CPU's backend in the rules below.
    return frozenset(key for key in _REGISTRABLE_KEYS if keys.has(key)) if keys else frozenset()


_BACKENDS_OF_AUTOGRAD = {
    key: _registrable_keys_in(get_backend_key_set_from_autograd(key)) for key in RUNTIME_KEYS
}
_AUTOGRADOTHER_BACKENDS = _registrable_keys_in(AUTOGRADOTHER_BACKENDS)


class Slot(NamedTuple):
    """The entry of an operator's table for one dispatch key.

    ``registration`` is None if there is no kernel, or if two kernels have an equal claim;
    ``reason`` is the word in brackets in a dumped table.
    """

    registration: Registration | None
    reason: str


def compute_slot(
    key: DispatchKey,
    kernels: Mapping[DispatchKey, Registration],
    fallbacks: Mapping[DispatchKey, Registration],
) -> Slot:
    """Compute the slot of the runtime key ``key``: pure.

    ``kernels`` has the operator's newest registration for each key, aliases included;
    ``fallbacks`` the newest backend fallback for each runtime key.
    """
    undefined = key is K.Undefined  # Note [Undefined borrows composite kernels]

    # 1. Registered for exactly this key.
    if (direct := kernels.get(key)) is not None:
        return Slot(direct, "kernel")

    # 2.1, 2.2. One kernel for every backend, which does not cover autograd.
    for alias in (K.CompositeExplicitAutogradNonFunctional, K.CompositeExplicitAutograd):
        explicit = kernels.get(alias)
        if explicit is not None and (undefined or key in EXPANDS[alias]):
            return Slot(explicit, "default backend kernel")

    # 2.3. One kernel for every backend and for autograd, for nested tensors.
    alias = K.CompositeImplicitAutogradNestedTensor
    if (nested := kernels.get(alias)) is not None and key in EXPANDS[alias]:
        return Slot(nested, "nested kernel")

    # 2.4. One kernel for every backend and for autograd, unless it would hide from autograd
    # that the key's backend has a kernel of its own.
    alias = K.CompositeImplicitAutograd
    if (implicit := kernels.get(alias)) is not None and (undefined or key in EXPANDS[alias]):
        if key is K.AutogradOther and not _AUTOGRADOTHER_BACKENDS.isdisjoint(kernels):
            return Slot(None, AMBIGUOUS)
        if K.CompositeExplicitAutograd not in kernels and _BACKENDS_OF_AUTOGRAD[key].isdisjoint(
            kernels
        ):
            return Slot(implicit, "math kernel")

    # 2.5. One kernel for the autograd of every backend.
    if (autograd := kernels.get(K.Autograd)) is not None and key in EXPANDS[K.Autograd]:
        return Slot(autograd, "autograd kernel")

    # 2.6. A decomposition for batched tensors.
    alias = K.FuncTorchBatchedDecomposition
    if (batched := kernels.get(alias)) is not None and key in EXPANDS[alias]:
        return Slot(batched, "batched kernel")

    # 3. The fallback, which is the same for every operator.
    if (fallback := fallbacks.get(key)) is not None:
        return Slot(fallback, "backend fallback")

    # 4. Nothing is registered.
    return Slot(None, MISSING)
