"""`autocast`: whether calls cast their floating-point tensors, and to which dtype.

Mirrors ``torch/amp/autocast_mode.py`` and the state in ``ATen/autocast_mode.cpp``. By default, the
Autocast keys are in every task's local excluded set; an autocast block removes its device's key
from it. Kernels for the key (``functionalities/autocast.py``) cast to `get_autocast_dtype`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.local_state.local_dispatch_key_set import (
    LOCAL_STATE,
    LocalState,
    local_dispatch_key_set,
    with_excluded,
)
from opdispatch.local_state.mode_decorator import ModeDecorator
from opdispatch.schema.scalar_type import find_dtype_of_name, is_numeric

_K = DispatchKey
_KEYS = {
    "cpu": _K.AutocastCPU,
    "cuda": _K.AutocastCUDA,
    "mtia": _K.AutocastMTIA,
    "maia": _K.AutocastMAIA,
    "xpu": _K.AutocastXPU,
    "ipu": _K.AutocastIPU,
    "hpu": _K.AutocastHPU,
    "xla": _K.AutocastXLA,
    "mps": _K.AutocastMPS,
    "privateuseone": _K.AutocastPrivateUse1,
}
AUTOCAST_KEYS = DispatchKeySet.of(*_KEYS.values())
"""The Autocast keys of all device types."""
_SUPPORTED = ("bfloat16", "float16")
_TO_BFLOAT16 = ("cpu", "maia", "hpu", "xla")
"""The device types that cast to bfloat16 by default; the others cast to float16."""
_ANY_DTYPE = ("cuda",)
"""The device types that can cast to any numeric dtype."""

CastCache = dict[tuple[int, Any, bool], tuple[Any, Any, int, Any]]
"""Maps (id of a tensor, dtype, whether gradients are recorded) to (tensor, its array and version
when it was cast, cast tensor)."""


class AutocastState(NamedTuple):
    """A task's autocast state, apart from its keys: an immutable value, replaced as a whole."""

    dtypes: MappingProxyType[str, Any]
    """The dtypes set explicitly, by device type."""
    cache_enabled: bool
    cache: CastCache | None
    """Casts since the outermost block began; None outside of all blocks."""
    nesting: int = 0
    """The number of open blocks in the task, which may end in any order."""


_DEFAULT = AutocastState(
    MappingProxyType({}),
    cache_enabled=True,
    cache=None,
)
AUTOCAST_STATE: ContextVar[AutocastState] = ContextVar(
    "opdispatch_autocast_state", default=_DEFAULT
)


def autocast_key(device_type: str) -> DispatchKey:
    """Return the Autocast key of a device type. Raises ArgumentError if there is none."""
    key = _KEYS.get(device_type)
    if key is None:
        raise ArgumentError(
            f"autocast knows no device type {device_type!r}; it knows {', '.join(_KEYS)}",
            argument="device_type",
        )
    return key


def dtype_to_cast_to(dtype: Any) -> np.dtype[Any]:
    """Convert to a NumPy dtype. Raises ArgumentError if it is not a numeric dtype."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        found = np.dtype(object)
    if not is_numeric(found):
        raise ArgumentError(
            f"autocast cannot cast to {dtype!r}, which is not a numeric dtype", argument="dtype"
        )
    return found


def is_autocast_enabled(device_type: str) -> bool:
    """Return whether autocast is enabled for ``device_type`` in this task."""
    return not local_dispatch_key_set()[1].has(autocast_key(device_type))


def get_autocast_dtype(device_type: str) -> np.dtype[Any]:
    """Return the dtype that autocast for ``device_type`` casts to in this task."""
    autocast_key(device_type)
    return _dtype_of(AUTOCAST_STATE.get(), device_type)


def _dtype_of(state: AutocastState, device_type: str) -> np.dtype[Any]:
    dtype = state.dtypes.get(device_type)
    return _usual_dtype(device_type) if dtype is None else dtype


@functools.cache
def _usual_dtype(device_type: str) -> np.dtype[Any]:
    dtype = find_dtype_of_name("bfloat16" if device_type in _TO_BFLOAT16 else "float16")
    assert dtype is not None, "NumPy and ml_dtypes have both"
    return dtype


def is_autocast_cache_enabled() -> bool:
    """Return whether casts of leaves that require gradients are cached until this task's outermost
    block ends.
    """
    return AUTOCAST_STATE.get().cache_enabled


def clear_autocast_cache() -> None:
    """Clear the casts cached since this task's outermost block began."""
    cache = AUTOCAST_STATE.get().cache
    if cache is not None:
        cache.clear()


def autocast_dtypes_of_task() -> dict[str, np.dtype[Any]]:
    """Return the non-default dtypes that this task casts to, by device type."""
    excluded = local_dispatch_key_set()[1]
    return {
        device_type: dtype
        for device_type, dtype in AUTOCAST_STATE.get().dtypes.items()
        if dtype != _usual_dtype(device_type) and not excluded.has(_KEYS[device_type])
    }


@contextmanager
def with_autocast_dtypes(dtypes: Mapping[str, np.dtype[Any]]) -> Iterator[None]:
    """Use another task's autocast dtypes in the block, for calls made on its behalf."""
    own = MappingProxyType(dict(dtypes))
    token = AUTOCAST_STATE.set(AutocastState(own, cache_enabled=True, cache={}, nesting=1))
    try:
        yield
    finally:
        AUTOCAST_STATE.reset(token)


class autocast(ModeDecorator):  # noqa: N801 - PyTorch's name
    """Casts floating-point tensors of ``device_type`` to a suitable dtype for each operator.

    It affects operators with a kernel for the device's Autocast key: products compute in ``dtype``,
    operators that need range or precision in float32, and others in the widest dtype of their
    arguments. float64 tensors are never cast. With ``enabled=False``, nothing is cast, even within
    an enabled block.

    The cast of a leaf that requires gradients is cached until the outermost block ends, unless
    ``cache_enabled`` is False. Warns and stays disabled if the device type does not support the
    dtype. Raises ArgumentError for a device type without an Autocast key and for a dtype that is
    not numeric.
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self._key_bit = bits_of_key(autocast_key(device_type))
        self._device_type = device_type
        self._dtype = get_autocast_dtype(device_type) if dtype is None else dtype_to_cast_to(dtype)
        self._cache_enabled = cache_enabled
        self._enabled = enabled and _is_supported(device_type, self._dtype)
        self._entered: list[tuple[LocalState, AutocastState, LocalState, AutocastState]] = []
        """The states before and after entering, for each open block of this object."""

    def __enter__(self) -> Self:
        keys, state = LOCAL_STATE.get(), AUTOCAST_STATE.get()
        cached = state.cache_enabled if self._cache_enabled is None else self._cache_enabled
        off = 0 if self._enabled else self._key_bit
        self._entered.append((keys, state, *self._set(off, self._dtype, cached, state.nesting + 1)))
        return self

    def _set(
        self, off: int, dtype: np.dtype[Any], cache_enabled: bool, nesting: int
    ) -> tuple[LocalState, AutocastState]:
        """Set the state of this device type: its key's bit in the excluded set, and its dtype."""
        keys, state = LOCAL_STATE.get(), AUTOCAST_STATE.get()
        keys = with_excluded(keys, keys.excluded & ~self._key_bit | off)
        dtypes = state.dtypes
        if dtypes.get(self._device_type) is not dtype:
            dtypes = MappingProxyType({**dtypes, self._device_type: dtype})
        cache = ({} if state.cache is None else state.cache) if nesting else None
        state = AutocastState(dtypes, cache_enabled, cache, nesting)
        LOCAL_STATE.set(keys)
        AUTOCAST_STATE.set(state)
        return keys, state

    def __exit__(self, *exc: object) -> None:
        keys, state, own_keys, own_state = self._entered.pop()
        now = AUTOCAST_STATE.get()
        if now.nesting == 1:
            clear_autocast_cache()
        if now is own_state and LOCAL_STATE.get() is own_keys:
            LOCAL_STATE.set(keys)
            AUTOCAST_STATE.set(state)
        else:  # blocks that began later have not ended
            off = keys.excluded & self._key_bit
            dtype = _dtype_of(state, self._device_type)
            self._set(off, dtype, state.cache_enabled, now.nesting - 1)

    def clone(self) -> autocast:
        """Return a new mode with the same arguments."""
        return autocast(self._device_type, self._dtype, self._enabled, self._cache_enabled)


def _is_supported(device_type: str, dtype: np.dtype[Any]) -> bool:
    """Return whether casts to that dtype are supported; warn if not."""
    if device_type in _ANY_DTYPE or dtype in map(find_dtype_of_name, _SUPPORTED):
        return True
    warnings.warn(
        f"autocast on {device_type!r} casts to bfloat16 or float16, not to {dtype}: it is disabled",
        stacklevel=3,
    )
    return False
