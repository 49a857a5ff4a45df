"""Long lists of numbers <-> ``Value.packed``: the elements of a tensor of one dimension.

One message per number takes some 50 times as long to encode, and the daemon, which routes the
call, would have to look at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch_wire.dtypes import ITEM_SIZES
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import TensorMemory, WireTensor, fill_tensor, tensor_from_proto
from opdispatch_wire.v1 import values_pb2

LONGEST_PLAIN = 16
"""Longest list of numbers that is not packed."""

# Numbers checked or converted at a time: C code that holds the GIL, which other threads get only
# between two slices.
_SLICE = 1 << 17

# Exactly these types, not their subclasses: decoding must give the same type back.
_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_ZEROS = {dtype: kind() for kind, dtype in _DTYPES.items()}


def number_type(values: Sequence[Any]) -> type | None:
    """Return the common type of the numbers in a long list; None if it cannot be packed."""
    if len(values) <= LONGEST_PLAIN:
        return None
    kind = type(values[0])
    if kind not in _DTYPES:
        return None
    for start in range(0, len(values), _SLICE):
        if set(map(type, values[start : start + _SLICE])) != {kind}:
            return None
    return kind


def fill_packed(
    message: values_pb2.Value,
    values: Sequence[Any],
    *,
    at: str,
    memory: TensorMemory | None,
    take_bytes: Callable[[int], None],
) -> bool:
    """Pack a list of numbers into an empty message. Return False if it cannot be packed.

    ``take_bytes`` is called with the size in bytes before any memory is allocated; it may raise.
    """
    kind = number_type(values)
    if kind is None:
        return False
    take_bytes(len(values) * ITEM_SIZES[_DTYPES[kind]])
    numbers = np.empty(len(values), _DTYPES[kind])
    try:
        for start in range(0, len(values), _SLICE):
            numbers[start : start + _SLICE] = values[start : start + _SLICE]
    except OverflowError:
        return False  # encoding item by item raises an error that names the one at fault
    fill_tensor(message.packed, numbers, at=at, memory=memory)
    return True


def packed_from_proto(
    message: values_pb2.Tensor, at: str, memory: TensorMemory | None = None
) -> list[Any]:
    """Decode a packed list of numbers. Raises WireError if the message is malformed."""
    _zero_of(WireTensor(message, at=at), at)
    numbers: list[Any] = tensor_from_proto(message, at=at, memory=memory).tolist()
    return numbers


def undecoded_packed(message: values_pb2.Tensor, at: str) -> list[Any]:
    """Return a list of one zero of the numbers' type; [] for an empty list.

    That is enough to choose an overload. Raises WireError if the message is malformed.
    """
    tensor = WireTensor(message, at=at)
    zero = _zero_of(tensor, at)
    return [zero] if tensor.shape[0] else []


def _zero_of(tensor: WireTensor, at: str) -> Any:
    """Return the zero of the numbers' type. Raises WireError unless they are a plain 1-d tensor."""
    zero = _ZEROS.get(tensor.message.dtype)
    if zero is None or tensor.ndim != 1 or tensor.device != "cpu" or not tensor.is_plain:
        raise WireError(
            f"{at}.packed is not a list of numbers; expected a plain tensor of one dimension on "
            f"the CPU, of {', '.join(_ZEROS)}"
        )
    return zero
