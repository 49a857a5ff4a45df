"""Tensors in shared memory among the leaves of messages that are alike. No I/O.

Such a leaf is the tensor's ``SharedMemory`` message. Its writer makes it as long as any other that
names as many bytes: numbers of a fixed length, which protobuf reads as it does the shortest form.
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
"""Region, offset and length of a tensor in shared memory, and whether it must not be written to."""

_REGION = field_tag(values_pb2.SharedMemory.REGION_FIELD_NUMBER, 0)
_OFFSET = field_tag(values_pb2.SharedMemory.OFFSET_FIELD_NUMBER, 0)
_LENGTH = field_tag(values_pb2.SharedMemory.LENGTH_FIELD_NUMBER, 0)
_READ_ONLY = field_tag(values_pb2.SharedMemory.READ_ONLY_FIELD_NUMBER, 0)
# The longest that a number of 32 bits may be, and one of 64.
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
        """Return an array over the elements there. Raises WireError."""


class SharedTensor(NamedTuple):
    """The facts of a tensor whose elements are in shared memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    keys: DispatchKeySet | None
    """Those of a Tensor; None for an array."""
    length: int

    def blank(self) -> Array | Tensor:
        """Return a tensor like it, whose elements are all in the same place.

        Raises ValueError if there are none of that shape.
        """
        array = np.broadcast_to(np.zeros((), self.dtype), self.shape)
        return array if self.keys is None else Tensor(array, keys=self.keys)


def place_bytes(length: int) -> int:
    """Return how long the message is that names so many bytes of shared memory."""
    tags = len(_REGION) + len(_OFFSET) + len(_LENGTH) + len(_READ_ONLY)
    return tags + _REGION_BYTES + _OFFSET_BYTES + len(varint(length)) + 1


@functools.lru_cache(4096)  # blocks are used again and again
def encode_place(place: SharedPlace) -> bytes:
    """Return a ``SharedMemory`` message of ``place_bytes``."""
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

    Raises WireError if that is not in the peer's memory, or of another length.
    """
    shape, dtype, keys, length = facts
    if leaf.length != length:
        raise WireError(f"$.memory.length is {leaf.length}; its shape and dtype need {length}")
    if dtype.kind == "b":
        # Copied: their peer could change them after they were checked.
        array = memory.read_at(leaf, shape, dtype, writable=False, at="$").copy()
        if array.view(np.uint8).max(initial=0) > 1:
            raise WireError("$.memory has a byte that is no bool; expected 0 or 1")
        array.flags.writeable = writable
    else:
        array = memory.read_at(leaf, shape, dtype, writable=writable, at="$")
    return array if keys is None else Tensor(array, keys=keys)


def _long_varint(value: int, size: int) -> bytes:
    """Return a number as so many bytes."""
    digits = [value >> 7 * place & 0x7F | 0x80 for place in range(size)]
    digits[-1] &= 0x7F
    return bytes(digits)
