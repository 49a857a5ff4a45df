"""A set of dispatch keys as one 64-bit word, and its derived properties.

Mirrors ``c10/core/DispatchKeySet.h`` and ``.cpp`` of PyTorch 2.13. Bits 0 to 15 are the backends
(CPU lowest, Meta highest), bits 16 to 61 the functionalities (Dense lowest, PythonDispatcher
highest); bits 62 and 63 are ORT and Named.

Note [Subtraction keeps the backend]
    ``-`` and ``remove`` clear functionality bits only. Backend bits are shared by all
    functionalities of a set, so removing ``AutogradCPU`` from {CPU, AutogradCPU} must leave the
    CPU bit; and removing ``CPU`` removes Dense, for every backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opdispatch.keys.dispatch_key import (
    FUNCTIONALITIES,
    FUNCTIONALITY_BIT,
    NUM_BACKENDS,
    PER_BACKEND_FUNCTIONALITIES,
    BackendComponent,
    DispatchKey,
    is_alias_key,
    parse_dispatch_key,
    to_backend_component,
    to_functionality_key,
    to_runtime_key,
)

BACKEND_MASK = (1 << NUM_BACKENDS) - 1
WORD_MASK = (1 << 64) - 1
_FULL = (1 << FUNCTIONALITY_BIT[DispatchKey.ORT]) - 1


def bits_of_key(key: DispatchKey | str) -> int:
    """Return the bits of ``key`` in a set: none for Undefined and for an alias.

    Raises DispatchKeyError for a string that names no key.
    """
    if isinstance(key, str):
        key = parse_dispatch_key(key)
    return _BITS_OF_KEY[key]


def _compute_bits(key: DispatchKey) -> int:
    functionality = to_functionality_key(key)
    if functionality is DispatchKey.Undefined:
        return 0
    backend = to_backend_component(key)
    bits = 1 << FUNCTIONALITY_BIT[functionality]
    return bits if backend is None else bits | 1 << backend


# Called thousands of times at startup, for the tables of keys.
_BITS_OF_KEY = {key: _compute_bits(key) for key in DispatchKey}


def _word_of(value: int | str) -> int:
    if isinstance(value, BackendComponent):
        return 1 << value
    return bits_of_key(value) if isinstance(value, DispatchKey | str) else int(value)


@dataclass(frozen=True, slots=True, init=False)
class DispatchKeySet:
    """An immutable set of dispatch keys. ``bits`` is its entire state."""

    bits: int

    def __init__(self, bits: int | DispatchKey | BackendComponent | str = 0) -> None:
        """Create the set from a word, one key or its name, or one backend bit.

        Raises ValueError if the word has more than 64 bits, DispatchKeyError for an unknown name.
        """
        # A key is also an int, but its value is not a word. Calls only make sets from words.
        word = bits if type(bits) is int else _word_of(bits)
        if word & ~WORD_MASK:
            raise ValueError(f"a dispatch key set has 64 bits, not {word:#x}")
        object.__setattr__(self, "bits", word)

    @classmethod
    def of(cls, *keys: DispatchKey | BackendComponent | str) -> DispatchKeySet:
        """Return the set of the given keys and backend bits."""
        bits = 0
        for key in keys:
            bits |= _word_of(key)
        return cls(bits)

    @classmethod
    def full(cls) -> DispatchKeySet:
        """Return the set with every bit that PyTorch 2.13 has (``DispatchKeySet::FULL``)."""
        return cls(_FULL)

    @classmethod
    def full_after(cls, key: DispatchKey) -> DispatchKeySet:
        """Return the keys a kernel for ``key`` redispatches to (``DispatchKeySet::FULL_AFTER``).

        Every functionality below that of ``key``, every backend, and PythonDispatcher.
        """
        place = FUNCTIONALITY_BIT.get(to_functionality_key(key), NUM_BACKENDS - 1)
        return cls(((1 << place) - 1) & _FULL | bits_of_key(DispatchKey.PythonDispatcher))

    @classmethod
    def from_raw_repr(cls, bits: int) -> DispatchKeySet:
        """Return the set of that word. Raises ValueError if it has more than 64 bits."""
        return cls(bits)

    def raw_repr(self) -> int:
        """Return the set as a 64-bit word."""
        return self.bits

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(self.bits | other.bits)

    def __and__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(self.bits & other.bits)

    def __xor__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(self.bits ^ other.bits)

    def __sub__(self, other: DispatchKeySet) -> DispatchKeySet:
        """Return ``self`` without the functionalities of ``other``.

        See Note [Subtraction keeps the backend].
        """
        return DispatchKeySet(self.bits & (~other.bits | BACKEND_MASK))

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, key: DispatchKey | str) -> bool:
        return self.has(key)

    def add(self, key: DispatchKey | str) -> DispatchKeySet:
        """Return ``self`` with ``key`` added."""
        return DispatchKeySet(self.bits | bits_of_key(key))

    def remove(self, key: DispatchKey | str) -> DispatchKeySet:
        """Return ``self`` without the functionality of ``key``; backend bits stay."""
        return DispatchKeySet(self.bits & (~bits_of_key(key) | BACKEND_MASK))

    def remove_backend(self, backend: BackendComponent) -> DispatchKeySet:
        """Return ``self`` without the bit of ``backend``."""
        return DispatchKeySet(self.bits & ~(1 << backend))

    def has(self, key: DispatchKey | str) -> bool:
        """Return whether every bit of ``key`` is set; always true for Undefined and for aliases."""
        bits = bits_of_key(key)
        return self.bits & bits == bits

    def has_backend(self, backend: BackendComponent) -> bool:
        """Return whether the bit of ``backend`` is set."""
        return bool(self.bits >> backend & 1)

    def has_all(self, other: DispatchKeySet) -> bool:
        """Return whether every bit of ``other`` is set."""
        return self.bits & other.bits == other.bits

    def has_any(self, other: DispatchKeySet) -> bool:
        """Return whether any bit of ``other`` is set."""
        return self.bits & other.bits != 0

    @property
    def highest_functionality_key(self) -> DispatchKey:
        """The functionality that is served first; Undefined if there is none."""
        place = self.bits.bit_length() - 1 - NUM_BACKENDS
        return FUNCTIONALITIES[place] if place >= 0 else DispatchKey.Undefined

    @property
    def highest_backend_key(self) -> BackendComponent | None:
        """The backend that is served; None if no backend bit is set."""
        backends = self.bits & BACKEND_MASK
        return BackendComponent(backends.bit_length() - 1) if backends else None

    @property
    def highest_priority_key(self) -> DispatchKey:
        """The key at which a call with this set arrives (``highestPriorityTypeId``).

        Undefined for a set that only has backend bits.
        """
        return to_runtime_key(self.highest_functionality_key, self.highest_backend_key)

    @property
    def table_index(self) -> int:
        """The dispatch table slot of the highest functionality, on the highest backend."""
        offset, mask = OFFSET_AND_MASK[(self.bits >> NUM_BACKENDS).bit_length()]
        # Without a backend, it is the first slot, which is the CPU's.
        return offset + max((self.bits & mask).bit_length() - 1, 0)

    def __iter__(self) -> Iterator[DispatchKey]:
        """Iterate over the runtime keys from lowest to highest.

        A per-backend functionality yields one key for each backend bit.
        """
        for functionality in FUNCTIONALITIES:
            if not self.bits >> FUNCTIONALITY_BIT[functionality] & 1:
                continue
            if functionality not in PER_BACKEND_FUNCTIONALITIES:
                yield functionality
                continue
            for backend in BackendComponent:
                if self.bits >> backend & 1:
                    yield to_runtime_key(functionality, backend)

    def __str__(self) -> str:
        return f"DispatchKeySet({', '.join(str(key) for key in self)})"

    __repr__ = __str__


def _lay_out_table() -> tuple[tuple[tuple[int, int], ...], tuple[DispatchKey, ...]]:
    """Assign every runtime key a slot: one per functionality, or one per backend.

    Returns, for each functionality counted from 1 (0 is Undefined), the offset of its first slot
    and the mask of the bits that select among its slots; and the key of each slot.
    """
    offsets_and_masks = [(0, 0)]
    keys = [DispatchKey.Undefined]
    for functionality in FUNCTIONALITIES:
        per_backend = functionality in PER_BACKEND_FUNCTIONALITIES
        offsets_and_masks.append((len(keys), BACKEND_MASK if per_backend else 0))
        if per_backend:
            keys += [to_runtime_key(functionality, backend) for backend in BackendComponent]
        else:
            keys.append(functionality)
    return tuple(offsets_and_masks), tuple(keys)


OFFSET_AND_MASK, RUNTIME_KEYS = _lay_out_table()
"""``RUNTIME_KEYS[i]`` is the key of dispatch table slot ``i``."""

TABLE_INDEX: dict[DispatchKey, int] = {key: index for index, key in enumerate(RUNTIME_KEYS)}

_ALL_BACKENDS = DispatchKeySet(BACKEND_MASK)
_K = DispatchKey

AUTOGRAD_KEYSET = DispatchKeySet.of(
    _K.AutogradFunctionality, _K.AutogradOther, _K.AutogradNestedTensor
)
AUTOGRAD_BITS = AUTOGRAD_KEYSET.bits
"""A tensor has one of these bits if calls with it may be recorded."""
AUTOCAST_KEYSET = DispatchKeySet.of(
    *(key for key in FUNCTIONALITIES if key.name.startswith("Autocast"))
)
DEFAULT_INCLUDED_SET = DispatchKeySet.of(_K.BackendSelect, _K.ADInplaceOrView)
DEFAULT_EXCLUDED_SET = AUTOCAST_KEYSET
AFTER_AUTOGRAD_KEYSET = DispatchKeySet.full_after(_K.AutogradOther)
AFTER_ADINPLACEORVIEW_KEYSET = DispatchKeySet.full_after(_K.ADInplaceOrView)

# The backends that share AutogradOther, because they have no Autograd key of their own.
AUTOGRADOTHER_BACKENDS = _ALL_BACKENDS | DispatchKeySet.of(
    _K.FPGA,
    _K.Vulkan,
    _K.Metal,
    _K.CustomRNGKeyId,
    _K.MkldnnCPU,
    _K.Sparse,
    _K.SparseCsr,
    _K.Quantized,
)
_BACKEND_KEYSET = AUTOGRADOTHER_BACKENDS.add(_K.Dense)
_NESTED_KEYSET = _ALL_BACKENDS | DispatchKeySet.of(_K.AutogradNestedTensor, _K.NestedTensor)

ALIAS_KEYSETS: dict[DispatchKey, DispatchKeySet] = {
    _K.Autograd: AUTOGRAD_KEYSET | _ALL_BACKENDS,
    _K.CompositeImplicitAutograd: (_BACKEND_KEYSET | AUTOGRAD_KEYSET).add(_K.NestedTensor),
    _K.FuncTorchBatchedDecomposition: DispatchKeySet.of(_K.FuncTorchBatched),
    _K.CompositeImplicitAutogradNestedTensor: _NESTED_KEYSET,
    _K.CompositeExplicitAutograd: _BACKEND_KEYSET,
    # Without the backends that must not get a kernel that aliases or mutates.
    _K.CompositeExplicitAutogradNonFunctional: _BACKEND_KEYSET.remove(_K.Sparse)
    .remove_backend(BackendComponent.XLA)
    .remove_backend(BackendComponent.Lazy),
}

_WITHOUT_MAPPED_BACKEND = (BackendComponent.HIP, BackendComponent.VE, BackendComponent.MTIA)


def get_runtime_dispatch_key_set(key: DispatchKey) -> DispatchKeySet:
    """Return the runtime keys that ``key`` stands for: several for an alias, else only itself."""
    return ALIAS_KEYSETS[key] if is_alias_key(key) else DispatchKeySet.of(key)


def is_included_in_alias(key: DispatchKey, alias: DispatchKey) -> bool:
    """Return whether a kernel for ``alias`` may fill the slot of ``key``; never for Undefined."""
    return key is not _K.Undefined and not is_alias_key(key) and ALIAS_KEYSETS[alias].has(key)


def get_backend_key_set_from_autograd(key: DispatchKey) -> DispatchKeySet:
    """Return the backend keys whose autograd key is ``key``.

    Empty for keys that are not Autograd keys, and for AutogradHIP, AutogradVE and AutogradMTIA,
    as in PyTorch (``c10::getBackendKeySetFromAutograd``).
    """
    if key is _K.AutogradOther:
        return AUTOGRADOTHER_BACKENDS
    if key is _K.AutogradNestedTensor:
        return _ALL_BACKENDS | DispatchKeySet.of(_K.NestedTensor)
    backend = to_backend_component(key)
    if (
        backend is None
        or backend in _WITHOUT_MAPPED_BACKEND
        or to_functionality_key(key) is not _K.AutogradFunctionality
    ):
        return DispatchKeySet()
    return DispatchKeySet.of(to_runtime_key(_K.Dense, backend))
