"""What is said of a tensor that stays in an interpreter: ``v1.RemoteTensor``.

interpreter   RemoteFacts.of(value)  ->  RemoteTensor in CallReply.returns
daemon, client                           facts_from_proto
caller        an object with FILL_VALUE  ->  RemoteTensor in CallRequest.args
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdispatch.arrays import device_of
from opdispatch.tensor import Tensor
from opdispatch_wire.dtypes import dtype_from_name, dtype_to_name
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import plain_key_bits
from opdispatch_wire.v1 import execution_pb2, values_pb2

ID_BYTES = 16
PREFIX_BYTES = 12
"""The ids of the values that one call keeps begin with the same so many bytes."""
SESSION_BYTES = 16


def value_id(prefix: bytes, place: int) -> bytes:
    """The id of the value at that place among those that one call keeps."""
    return prefix + place.to_bytes(ID_BYTES - PREFIX_BYTES)


def store_key(number: bytes, place: int) -> bytes:
    """What an interpreter keeps a value under: its id, and which of its places this is."""
    return number + place.to_bytes(4)


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """A tensor without its elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    device: str
    key_bits: int
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """The size of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, value: Any) -> RemoteFacts:
        """Those of an array, or of a Tensor."""
        array = value.array if isinstance(value, Tensor) else value
        device = device_of(array)
        bits, requires_grad = plain_key_bits(device), False
        if isinstance(value, Tensor):
            bits, requires_grad = value.key_bits, value.requires_grad
        return cls(array.dtype, tuple(array.shape), device, bits, requires_grad)

    def write_to(self, message: values_pb2.RemoteTensor, *, at: str) -> None:
        """Says them. Raises WireError for a dtype that has no name on the wire."""
        message.dtype = dtype_to_name(self.dtype, at=at)
        message.shape.extend(self.shape)
        message.device = self.device
        message.dispatch_keys = self.key_bits
        message.requires_grad = self.requires_grad


def needs_daemon(request: execution_pb2.CallRequest) -> bool:
    """Whether a call is about remote values or programs, so that only the daemon can route it."""
    return bool(
        request.program
        or request.adopt
        or request.HasField("keep")
        or any(_is_remote(value) for value in request.args)
        or any(_is_remote(value) for value in request.kwargs.values())
    )


def _is_remote(value: values_pb2.Value) -> bool:
    kind = value.WhichOneof("kind")
    return kind == "remote" or (
        kind == "list" and any(_is_remote(item) for item in value.list.items)
    )


def facts_from_proto(message: values_pb2.RemoteTensor, *, at: str) -> RemoteFacts:
    """What the message says of the tensor. Raises WireError if that cannot be."""
    shape = tuple(message.shape)
    if any(extent < 0 for extent in shape):
        raise WireError(f"{at}.shape is {list(shape)}; no extent is negative")
    return RemoteFacts(
        dtype_from_name(message.dtype, at=f"{at}.dtype"),
        shape,
        message.device or "cpu",
        message.dispatch_keys,
        message.requires_grad,
    )
