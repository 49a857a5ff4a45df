"""Long lists of numbers <-> ``Value.packed``: the elements of a tensor of one dimension.

A message of its own for each number takes some 50 times as long, and a router of the call
would have to look at each.
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
"""How many numbers a list has that is not worth packing."""

# So many are looked at or converted at once, in C and with the interpreter lock; other threads may
# run in between.
_SLICE = 1 << 17

# Exactly these types: they come back as what they were.
_DTYPES = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_ZEROS = {dtype: kind() for kind, dtype in _DTYPES.items()}


def number_type(values: Sequence[Any]) -> type | None:
    """Return the type of the numbers of a long list; None if it is not to be packed."""
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
    """Pack a list of numbers into an empty message; False if it is not to be packed.

    ``take_bytes`` is called with the number of its bytes, before these are made.
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
        return False  # which of them, the error says where each is looked at
    fill_tensor(message.packed, numbers, at=at, memory=memory)
    return True


def packed_from_proto(
    message: values_pb2.Tensor, at: str, memory: TensorMemory | None = None
) -> list[Any]:
    """Return the numbers. Raises WireError if the message is malformed."""
    _zero_of(WireTensor(message, at=at), at)
    numbers: list[Any] = tensor_from_proto(message, at=at, memory=memory).tolist()
    return numbers


def undecoded_packed(message: values_pb2.Tensor, at: str) -> list[Any]:
    """Return one zero of the numbers' type, enough to choose an overload; [] without numbers.

    Raises WireError if the message is malformed.
    """
    tensor = WireTensor(message, at=at)
    zero = _zero_of(tensor, at)
    return [zero] if tensor.shape[0] else []


def _zero_of(tensor: WireTensor, at: str) -> Any:
    """Return the zero of their type."""
    zero = _ZEROS.get(tensor.message.dtype)
    if zero is None or tensor.ndim != 1 or tensor.device != "cpu" or not tensor.is_plain:
        raise WireError(
            f"{at}.packed is no list of numbers; expected a plain tensor of one dimension on the "
            f"CPU, of {', '.join(_ZEROS)}"
        )
    return zero
