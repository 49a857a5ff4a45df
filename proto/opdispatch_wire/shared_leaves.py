"""Leaves of planned messages that are tensors in shared memory. No I/O.

Such a leaf is the tensor's ``SharedMemory`` message. For a given tensor size, all have the same
length: numbers are written as varints padded to a fixed length, which protobuf accepts.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.protobuf_fields import field_tag, varint
from opdispatch_wire.v1 import values_pb2

Array: TypeAlias = "np.ndarray[Any, Any]"

SharedPlace = tuple[int, int, int, bool]
"""Region, offset and length in bytes of a tensor in shared memory, and whether it is read-only."""

_REGION = field_tag(values_pb2.SharedMemory.REGION_FIELD_NUMBER, 0)
_OFFSET = field_tag(values_pb2.SharedMemory.OFFSET_FIELD_NUMBER, 0)
_LENGTH = field_tag(values_pb2.SharedMemory.LENGTH_FIELD_NUMBER, 0)
_READ_ONLY = field_tag(values_pb2.SharedMemory.READ_ONLY_FIELD_NUMBER, 0)
# The longest varints of a 32-bit and a 64-bit number.
_REGION_BYTES, _OFFSET_BYTES = 5, 10


class ReadableMemory(Protocol):
    """Shared memory as the receiver of one message sees it."""

    def read_at(
        self,
        memory: values_pb2.SharedMemory,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over the elements. Raises WireError if they are not in this memory."""


class SharedTensor(NamedTuple):
    """The facts of a tensor whose elements are in shared memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    keys: DispatchKeySet | None
    """The keys of a Tensor; None for an array."""
    length: int
    """Size of the elements in bytes."""

    def blank(self) -> Array | Tensor:
        """Return a tensor of zeros with the same facts, which takes almost no memory.

        Raises ValueError if NumPy has no arrays of that shape.
        """
        array = np.broadcast_to(np.zeros((), self.dtype), self.shape)
        return array if self.keys is None else Tensor(array, keys=self.keys)


def place_bytes(length: int) -> int:
    """Return the length of the encoded place of a tensor of ``length`` bytes."""
    tags = len(_REGION) + len(_OFFSET) + len(_LENGTH) + len(_READ_ONLY)
    return tags + _REGION_BYTES + _OFFSET_BYTES + len(varint(length)) + 1


@functools.lru_cache(4096)  # blocks are reused, so that the same places recur
def encode_place(place: SharedPlace) -> bytes:
    """Return a serialized ``SharedMemory`` message, padded to ``place_bytes``."""
    region, offset, length, read_only = place
    return b"".join(
        (
            *(_REGION, _long_varint(region, _REGION_BYTES)),
            *(_OFFSET, _long_varint(offset, _OFFSET_BYTES)),
            *(_LENGTH, varint(length)),
            *(_READ_ONLY, varint(read_only)),
        )
    )


def read_shared(
    memory: ReadableMemory, leaf: values_pb2.SharedMemory, facts: SharedTensor, *, writable: bool
) -> Array | Tensor:
    """Return the tensor of a leaf.

    Raises WireError if it is not in the peer's memory, or has another length.
    """
    shape, dtype, keys, length = facts
    if leaf.length != length:
        raise WireError(f"$.memory.length is {leaf.length}; its shape and dtype need {length}")
    if dtype.kind == "b":
        # Copied before the check: the peer could change them afterwards.
        array = memory.read_at(leaf, shape, dtype, writable=False, at="$").copy()
        if array.view(np.uint8).max(initial=0) > 1:
            raise WireError("$.memory has a byte that is not a bool; expected 0 or 1")
        array.flags.writeable = writable
    else:
        array = memory.read_at(leaf, shape, dtype, writable=writable, at="$")
    return array if keys is None else Tensor(array, keys=keys)


def _long_varint(value: int, size: int) -> bytes:
    """Return a number as a varint padded to ``size`` bytes."""
    digits = [value >> 7 * place & 0x7F | 0x80 for place in range(size)]
    digits[-1] &= 0x7F
    return bytes(digits)
