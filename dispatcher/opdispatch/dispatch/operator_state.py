"""The state of an operator as callers see it: an immutable snapshot of its registrations.

Mirrors the dispatch table of ``OperatorEntry`` and the masks of ``DispatchKeyExtractor``. PyTorch
updates a table with one slot per key whenever a registration changes, and must determine which
slots the change affects. Here a change publishes a new snapshot, whose slots are computed when a
call first needs them and then cached. No slot can be stale: each follows from the snapshot in which
it is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from opdispatch.arrays import CPU_BITS
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.boxing.signature import Signature
from opdispatch.dispatch.dispatch_key_extractor import (
    is_fallthrough,
    non_fallthrough_mask,
    table_key,
)
from opdispatch.dispatch.dispatch_table import Slot, compute_slot
from opdispatch.dispatch.registration import Registration
from opdispatch.keys.dispatch_key import (
    DispatchKey,
)
from opdispatch.keys.dispatch_key_set import BACKEND_MASK, RUNTIME_KEYS, WORD_MASK, DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import (
    DEFAULT_STATE,
    LocalState,
    apply_local_sets,
)
from opdispatch.tensors.tensor import bits_of_tensor

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

# Programs use few key sets; the limit is for callers that construct many.
MEMO_LIMIT = 256
STATE_LIMIT = 16
"""The limit on combinations of included and excluded keys, of which there are few, too."""
NONDETERMINISTIC = "nondeterministic_seeded"
"""The tag of operators with random results."""


NEEDS_GRADIENT = WORD_MASK + 1
"""A bit above the key bits: one of a call's tensors requires gradients."""
TENSOR_BITS = bits_of_tensor(CPU_BITS)
"""The key bits of plain CPU tensors: nearly all of them share this very object."""


class Calls(dict[int, Callable[..., Any]]):
    """Kernels by the key bits of the arguments, with ``NEEDS_GRADIENT`` if one requires gradients.

    ``arrays`` is the kernel for NumPy arrays, ``tensors`` that for plain CPU tensors, and
    ``recorded`` the latter if a tensor requires gradients: found without reading bits. Each is None
    until first used.
    """

    __slots__ = ("arrays", "counted", "recorded", "tensors")

    def __init__(self) -> None:
        self.arrays: Callable[..., Any] | None = None
        self.tensors: Callable[..., Any] | None = None
        self.counted: Callable[..., Any] | None = None
        """Kernel below ``tensors``, if that only increments the version of one argument."""
        self.recorded: Callable[..., Any] | None = None

    def remember(self, bits: int, call: Callable[..., Any]) -> None:
        """Cache the function for ``bits``, unless the memo has reached its limit."""
        if bits == CPU_BITS:
            self.arrays = call
        elif bits == TENSOR_BITS:
            self.tensors, self.counted = call, getattr(call, "counted", None)
        elif bits == TENSOR_BITS | NEEDS_GRADIENT:
            self.recorded = call
        if len(self) < MEMO_LIMIT:
            self[bits] = call


class Fallbacks:
    """The backend fallbacks of a dispatcher: the newest one of each runtime key. Immutable."""

    __slots__ = ("by_key", "fallthrough_keys")

    def __init__(self, by_key: Mapping[DispatchKey, Registration]) -> None:
        self.by_key = by_key
        self.fallthrough_keys = frozenset(
            key for key, registration in by_key.items() if is_fallthrough(registration)
        )


class Resolution(NamedTuple):
    """The kernel at which a call arrived: its key, and the reason."""

    key: DispatchKey
    registration: Registration
    kernel: KernelFunction
    reason: str

    @property
    def registered_at(self) -> str:
        """The place of the kernel's registration, "FILE:LINE"."""
        return self.registration.site


class OperatorState:
    """One operator between two changes.

    Guards      nothing: the registrations never change, and the memos below only gain
                entries, each of which follows from the registrations.
    Invariants  every entry of ``calls``, ``redispatches``, ``boxed_redispatches`` and of the
                tables of ``calls_in`` agrees with ``resolve`` for its key.
    """

    __slots__ = (
        "_asks_vmap_mode",
        "_masks",
        "_slots",
        "boxed_redispatches",
        "calls",
        "calls_of_states",
        "definition",
        "fallbacks",
        "kernels",
        "redispatches",
        "signature",
    )

    def __init__(
        self,
        definition: Registration | None,
        signature: Signature | None,
        kernels: Mapping[DispatchKey, Registration],
        fallbacks: Fallbacks,
    ) -> None:
        self.definition = definition
        self.signature = signature
        self.kernels = kernels
        self.fallbacks = fallbacks
        # Memos of functions to call: by the key bits of a call's arguments in the default local
        # state; the same for other included and excluded keys; by the key bits of a redispatch,
        # unboxed and boxed.
        self.calls = Calls()
        self.calls_of_states: dict[tuple[int, int], Calls] = {}
        self.redispatches: dict[int, Callable[..., Any]] = {}
        self.boxed_redispatches: dict[int, Callable[..., Any]] = {}
        self._slots: dict[DispatchKey, Slot] = {}
        self._masks: dict[int, int] = {}
        self._asks_vmap_mode: bool | None = None

    @property
    def schema(self) -> FunctionSchema | None:
        """The operator's schema, if it is defined."""
        return self.definition.schema if self.definition is not None else None

    @property
    def asks_vmap_mode(self) -> bool:
        """Whether calls within ``vmap`` differ even without a batch.

        True for random operators, and those with a kernel for FuncTorchVmapMode.
        """
        found = self._asks_vmap_mode
        if found is None:
            tags = () if self.definition is None else self.definition.tags
            found = NONDETERMINISTIC in tags or DispatchKey.FuncTorchVmapMode in self.kernels
            self._asks_vmap_mode = found
        return found

    def slot(self, key: DispatchKey) -> Slot:
        """Return the slot of a runtime key."""
        slot = self._slots.get(key)
        if slot is None:
            slot = compute_slot(key, self.kernels, self.fallbacks.by_key)
            self._slots[key] = slot
        return slot

    def registered(self, key: DispatchKey) -> Slot:
        """Return the kernel registered for exactly ``key``, also an alias key, as a slot."""
        return Slot(self.kernels.get(key), "kernel")

    def mask(self, bits: int) -> int:
        """Return ``bits`` without functionalities that fall through on their highest backend."""
        backend = max((bits & BACKEND_MASK).bit_length() - 1, 0)
        mask = self._masks.get(backend)
        if mask is None:
            mask = self.compute_mask(backend)
            self._masks[backend] = mask
        return bits & mask

    def compute_mask(self, backend: int) -> int:
        """Return the bits that do not fall through if ``backend`` is the highest one; pure."""
        own = any(is_fallthrough(registration) for registration in self.kernels.values())

        def falls_through(key: DispatchKey) -> bool:
            # A slot can only fall through if a kernel of the operator does, or its fallback.
            may_fall = own or key in self.fallbacks.fallthrough_keys
            return may_fall and is_fallthrough(self.slot(key).registration)

        return non_fallthrough_mask(backend, falls_through)

    def resolve(self, bits: int) -> tuple[DispatchKey, Slot]:
        """Return the key at which a call with ``bits`` arrives, and its slot."""
        key = table_key(bits)
        return key, self.slot(key)

    def find_kernel(self, bits: int) -> KernelFunction | None:
        """Return the kernel at which a call with ``bits`` arrives; None if there is none."""
        registration, _ = self.resolve(bits)[1]
        if registration is None or is_fallthrough(registration):
            return None
        return registration.kernel

    def calls_in(self, local: LocalState) -> Calls | None:
        """Return ``calls`` for a task's local state.

        A separate table if that includes or excludes keys. None if a trace or an observer has to
        see each call, or if there are too many states.
        """
        if local is DEFAULT_STATE:
            return self.calls
        if (switched := local.switched) is None:
            return None
        memo = self.calls_of_states.get(switched)
        if memo is None and len(self.calls_of_states) < STATE_LIMIT:
            memo = self.calls_of_states.setdefault(switched, Calls())
        return memo

    def remember(
        self, memo: dict[int, Callable[..., Any]], bits: int, call: Callable[..., Any]
    ) -> None:
        """Cache the function for ``bits`` in a memo, unless that has reached its limit."""
        if len(memo) < MEMO_LIMIT:
            memo[bits] = call

    def keys_with_kernel(self) -> list[DispatchKey]:
        """Return the runtime keys that the operator's own kernels serve, in table order."""
        own = [(key, self.slot(key).registration) for key in RUNTIME_KEYS]
        fallbacks = self.fallbacks.by_key
        return [
            key
            for key, registration in own
            if registration is not None
            and registration is not fallbacks.get(key)
            and not is_fallthrough(registration)
        ]

    def find_violations(self) -> list[str]:
        """Return descriptions of memos that do not follow from the registrations."""
        fresh = OperatorState(self.definition, self.signature, self.kernels, self.fallbacks)
        wrong = [
            f"the slot of {key} is {slot}, and should be {fresh.slot(key)}"
            for key, slot in list(self._slots.items())
            if fresh.slot(key) != slot
        ]
        wrong += [
            f"the mask of backend {backend} is {mask:#x}, "
            f"and should be {fresh.compute_mask(backend):#x}"
            for backend, mask in list(self._masks.items())
            if fresh.compute_mask(backend) != mask
        ]
        default = DEFAULT_STATE.included, DEFAULT_STATE.excluded
        for switched, memo in [(default, self.calls), *list(self.calls_of_states.items())]:
            for bits in list(memo):
                keys = fresh.mask(apply_local_sets(*switched, bits & WORD_MASK))
                if fresh.resolve(keys)[1].registration is None:
                    which = f"{DispatchKeySet(bits)} leads to a kernel"
                    wrong.append(f"{which}, and should lead to none")
        return wrong
