"""The shape of a call, common to calls that the daemon routes the same way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from opdispatch import Generator, Tensor
from opdispatch.arrays import device_of, find_layout, key_bits_of
from opdispatch.keys.dispatch_key import BackendComponent
from opdispatch_client.remote_value import RemoteValue

# A list counts with the kinds of all its items, and of those of the lists in it.
_LONGEST_LIST = 16
_DEEPEST_LIST = 3
# The dispatch keys of all but the host's tensors leave open which of several devices they are on.
_HOST = 1 << BackendComponent.CPU
_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


class _UnknownKindError(Exception):
    """An argument that says nothing about the next call."""


def call_shape(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return a key that is equal for calls for which the daemon chooses the same overload and
    kernel, and that the same interpreters can run.

    That is, calls of one operator with arguments of the same kinds, and tensors of the same
    dispatch keys and on the same devices, whatever the elements, shapes and dtypes, but for arrays
    without dimensions and tensors of one element: they may be numbers to the daemon, as their dtype
    says. (Where it chooses by the text of an argument, it gives no route.) None for arguments that
    it does not know, and for anything but an operator's name.
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
    if dtype.kind not in "biufc" or dtype == np.uint64:  # which is an int or not by its value
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
