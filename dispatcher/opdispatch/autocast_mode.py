"""`autocast`: which Autocast keys the calls of a task visit.

Mirrors the part of ``torch/amp/autocast_mode.py`` and ``ATen/autocast_mode.cpp`` that the
dispatcher sees: the Autocast keys are in the local excluded set of every task, and a device's
leaves it in a block. Kernels for the key do the casting, and ask `get_autocast_dtype`.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np

from opdispatch.dispatch_key import DispatchKey
from opdispatch.errors import ArgumentError
from opdispatch.local_dispatch_key_set import ForceDispatchKeyGuard, local_dispatch_key_set
from opdispatch.mode_decorator import ModeDecorator
from opdispatch.scalar_type import find_dtype_of_name

_HALF, _BFLOAT = find_dtype_of_name("float16"), find_dtype_of_name("bfloat16")
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
_DTYPES: ContextVar[MappingProxyType[str, Any]] = ContextVar(
    "opdispatch_autocast_dtypes",
    default=MappingProxyType(
        {d: _BFLOAT if d in ("cpu", "maia", "hpu", "xla") else _HALF for d in _KEYS}
    ),
)


def _key(device_type: str) -> DispatchKey:
    key = _KEYS.get(device_type)
    if key is None:
        raise ArgumentError(
            f"autocast knows no device type {device_type!r}; it knows {', '.join(_KEYS)}",
            argument="device_type",
        )
    return key


def is_autocast_enabled(device_type: str) -> bool:
    """Whether calls with tensors of ``device_type`` visit their Autocast key in this task."""
    return not local_dispatch_key_set()[1].has(_key(device_type))


def get_autocast_dtype(device_type: str) -> np.dtype[Any]:
    """The dtype that a kernel for the Autocast key of ``device_type`` casts to in this task."""
    _key(device_type)
    dtype: np.dtype[Any] = _DTYPES.get()[device_type]
    return dtype


class autocast(ModeDecorator):  # noqa: N801 - PyTorch's name
    """Calls with tensors of ``device_type`` visit their Autocast key first, in the block.

    With ``enabled=False`` they do not, even within another such block. Raises ArgumentError for a
    device type that has no Autocast key.
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True) -> None:
        self._key = _key(device_type)
        self._device_type = device_type
        self._dtype = get_autocast_dtype(device_type) if dtype is None else np.dtype(dtype)
        self._enabled = enabled
        self._entered: list[tuple[Token[MappingProxyType[str, Any]], ForceDispatchKeyGuard]] = []

    def __enter__(self) -> Self:
        included, excluded = local_dispatch_key_set()
        excluded = excluded.remove(self._key) if self._enabled else excluded.add(self._key)
        guard = ForceDispatchKeyGuard(included, excluded)
        guard.__enter__()
        dtypes = MappingProxyType({**_DTYPES.get(), self._device_type: self._dtype})
        self._entered.append((_DTYPES.set(dtypes), guard))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        token, guard = self._entered.pop()
        _DTYPES.reset(token)
        guard.__exit__(exc_type, exc, traceback)

    def clone(self) -> autocast:
        """A new one of the same arguments."""
        return autocast(self._device_type, self._dtype, self._enabled)
