"""The shape of a call: a key that is equal for calls that the daemon routes in the same way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from opdispatch import Generator, Tensor
from opdispatch.arrays import device_of, find_layout, key_bits_of
from opdispatch.keys.dispatch_key import BackendComponent
from opdispatch_client.remote_value import RemoteValue

# Longer lists give no shape, since the key of a list has the kinds of all its items.
_LONGEST_LIST = 16
_DEEPEST_LIST = 3
# For any other device, the key needs the device name, as dispatch keys do not have its index.
_HOST = 1 << BackendComponent.CPU
_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


class _UnknownKindError(Exception):
    """An argument for which calls may be routed differently each time."""


def call_shape(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return a key that is equal for calls with the same overload, kernel and interpreters.

    It has the operator, the kinds of the arguments, and the dispatch keys and devices of tensors,
    but not their elements, shapes or dtypes. Only zero-dimensional arrays and tensors of one
    element also have their dtypes in it, since the daemon may treat them as numbers. (If the daemon
    chooses by a string argument, it returns no route.) Returns None for arguments of unknown kinds,
    and if ``operator`` is not a name.
    """
    if not isinstance(operator, str):
        return None
    try:
        if not kwargs:
            return operator, tuple([_kind(value) for value in args])
        named = frozenset((name, _kind(value)) for name, value in kwargs.items())
        return operator, tuple([_kind(value) for value in args]), named
    except _UnknownKindError:
        return None


def _number_kind(dtype: np.dtype[Any]) -> Hashable:
    # a uint64 is an int or not depending on its value
    if dtype.kind not in "biufc" or dtype == np.uint64:
        raise _UnknownKindError
    return np.ndarray, dtype.kind


def _kind(value: Any, depth: int = 0) -> Hashable:
    cls: Any = type(value)  # Hashable, which mypy does not see
    if cls is np.ndarray:
        return cast(Hashable, cls) if value.ndim else _number_kind(value.dtype)
    if cls in _PLAIN:
        return cast(Hashable, cls)
    if cls is Generator:
        return cls, value.key_bits
    if cls is Tensor:
        bits = int(value.key_bits)
        place = bits if bits & _HOST else (bits, value.device)
        return (place, _number_kind(value.dtype)) if value.size == 1 else place
    if cls in (list, tuple) and len(value) <= _LONGEST_LIST and depth < _DEEPEST_LIST:
        return tuple([_kind(item, depth + 1) for item in value])
    if isinstance(value, np.generic):
        return _number_kind(value.dtype)
    if isinstance(value, np.dtype) or (
        cls is type and (issubclass(value, np.generic) or value in _PLAIN)
    ):
        return np.dtype
    if isinstance(value, RemoteValue):
        if (kind := value.kind) is not None:
            return kind
        raise _UnknownKindError
    if find_layout(cls) is not None:
        bits = key_bits_of(value)
        return bits if bits & _HOST else (bits, device_of(value))
    raise _UnknownKindError
