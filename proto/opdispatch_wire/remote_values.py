"""Descriptions of tensors that stay in an interpreter: ``v1.RemoteTensor``.

interpreter   RemoteFacts.of(value)  ->  RemoteTensor in CallReply.returns
daemon, client                           facts_from_proto
caller        an object with FILL_VALUE  ->  RemoteTensor in CallRequest.args
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from opdispatch.arrays import COMPONENTS, LAYOUTS, device_of, find_layout
from opdispatch.arrays.layouts import NESTED
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.dtypes import ITEM_SIZES, dtype_from_name, dtype_to_name, item_size
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.tensors import key_bits_elsewhere, plain_key_bits
from opdispatch_wire.v1 import execution_pb2, values_pb2

ID_BYTES = 16
PREFIX_BYTES = 12
"""Length of the prefix that the ids of all values kept by one call have in common."""
SESSION_BYTES = 16

_VALUES = "values"
_MAY_BE_REMOTE = ("remote", "list")


def value_id(prefix: bytes, place: int) -> bytes:
    """Return the id of value number ``place`` among those that one call keeps."""
    return prefix + place.to_bytes(ID_BYTES - PREFIX_BYTES)


FIRST_PLACE: Final = bytes(4)
"""The suffix of a value's store key in the place where the value was made."""


def store_key(number: bytes, place: int) -> bytes:
    """Return the key of a stored value: its id, and the number of one of its places."""
    return number + place.to_bytes(4)


def id_of(key: bytes) -> bytes:
    """Return the value id in a store key."""
    return key[:-4]


def place_of(key: bytes) -> int:
    """Return the number of the place in a store key."""
    return int.from_bytes(key[-4:])


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """The metadata of a tensor: everything but its elements."""

    dtype_name: str
    """The dtype's name on the wire."""
    shape: tuple[Any, ...]
    """An extent is None where the components of a nested tensor differ."""
    device: str
    key_bits: int
    requires_grad: bool
    layout: str = ""
    """The layout's name if the tensor is not dense, which is also its kind of Value."""
    part_bytes: int = 0
    """Size in bytes of its parts if the tensor is not dense."""
    is_plain: bool = field(init=False, compare=False)
    """Whether it dispatches as a plain array of its device does: the same keys, no gradient."""

    def __post_init__(self) -> None:
        kind = self.device.partition(":")[0]
        is_plain = not self.requires_grad and not self.layout and kind in COMPONENTS
        is_plain = is_plain and self.key_bits == plain_key_bits(self.device)
        object.__setattr__(self, "is_plain", is_plain)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return dtype_from_name(self.dtype_name, at="$.dtype")

    @property
    def nbytes(self) -> int:
        """Size in bytes of the elements."""
        if self.layout:
            return self.part_bytes
        return int(math.prod(self.shape)) * ITEM_SIZES[self.dtype_name]

    @classmethod
    def of(cls, value: Any, *, at: str) -> RemoteFacts:
        """Return the facts of an array or a Tensor.

        Raises WireError, whose message starts with ``at``, for a dtype without a name on the wire.
        """
        array = value.array if isinstance(value, Tensor) else value
        device, layout = device_of(array), find_layout(type(array))
        bits = plain_key_bits(device) if layout is None else layout.key_bits_of(array)
        requires_grad = False
        if isinstance(value, Tensor):
            bits, requires_grad = key_bits_elsewhere(value), value.requires_grad
        name = dtype_to_name(array.dtype, at=at)
        facts = cls(name, tuple(array.shape), device, bits, requires_grad)
        if layout is None:
            return facts
        return replace(facts, layout=layout.name, part_bytes=layout.nbytes(array))

    def write_to(self, message: values_pb2.RemoteTensor | values_pb2.Tensor) -> None:
        """Write the facts into an empty message."""
        message.dtype = self.dtype_name
        message.shape.extend(-1 if extent is None else extent for extent in self.shape)
        message.device = self.device
        if isinstance(message, values_pb2.RemoteTensor):
            message.layout = self.layout
            message.bytes = self.part_bytes
        message.dispatch_keys = self.key_bits
        message.requires_grad = self.requires_grad

    def value_of(self, array: Any) -> Any:
        """Return the value with these facts and the elements of ``array``: it, or a Tensor."""
        if self.requires_grad or self.key_bits not in (0, plain_key_bits(self.device)):
            keys = DispatchKeySet(self.key_bits) if self.key_bits else None
            return Tensor(array, keys=keys, requires_grad=self.requires_grad)
        return array


def needs_daemon(request: execution_pb2.CallRequest) -> bool:
    """Return whether the daemon must route a call: a program, or one that says where to keep."""
    return bool(request.program or request.adopt or request.keep.on or request.keep.device)


def remote_arguments(request: execution_pb2.CallRequest) -> list[values_pb2.RemoteTensor]:
    """Return the remote tensors among the arguments, in lists as well."""
    found: list[values_pb2.RemoteTensor] = []
    for value in request.args:  # most are tensors: every direct call passes here
        if value.WhichOneof("kind") in _MAY_BE_REMOTE:
            found += [remote for remote, _ in remote_tensors_in(value, "$")]
    for value in request.kwargs.values() if request.kwargs else ():
        found += [remote for remote, _ in remote_tensors_in(value, "$")]
    return found


def values_elsewhere_error() -> RefusedError:
    """Return the error for a direct call with values that are elsewhere or being moved."""
    return RefusedError(
        "a remote tensor is not in this interpreter, or about to be moved; the call never started",
        hint="make the call through the daemon",
        **{_VALUES: "elsewhere"},
    )


def are_values_elsewhere(error: Exception) -> bool:
    """Return whether an error is a ``values_elsewhere_error``, received over the wire or not."""
    return isinstance(error, RefusedError) and error.facts.get(_VALUES) == "elsewhere"


def not_kept_error() -> RefusedError:
    """Return the error for a direct call whose results only the daemon can let be kept."""
    return RefusedError(
        "the interpreter may not keep these results without the daemon",
        hint="make the call again through the daemon",
        **{_VALUES: "not kept"},
    )


def were_not_kept(error: Exception) -> bool:
    """Return whether an error is a ``not_kept_error``, received over the wire or not."""
    return isinstance(error, RefusedError) and error.facts.get(_VALUES) == "not kept"


def remote_tensors_in(
    value: values_pb2.Value, at: str
) -> Iterator[tuple[values_pb2.RemoteTensor, str]]:
    """Yield each remote tensor of an argument, in lists as well, with its place."""
    kind = value.WhichOneof("kind")
    if kind == "remote":
        yield value.remote, at
    elif kind == "list":
        for i, item in enumerate(value.list.items):
            yield from remote_tensors_in(item, f"{at}[{i}]")


def facts_from_proto(
    message: values_pb2.RemoteTensor | values_pb2.Tensor, *, at: str
) -> RemoteFacts:
    """Decode a remote tensor's facts. Raises WireError if they are invalid."""
    layout, part_bytes = "", 0
    if isinstance(message, values_pb2.RemoteTensor):
        layout, part_bytes = message.layout, message.bytes
    if layout and layout not in LAYOUTS:
        raise WireError(
            f"{at}.layout is {reprlib.repr(layout)}; expected one of {', '.join(LAYOUTS)}"
        )
    shape: tuple[int | None, ...] = tuple(message.shape)
    if layout == NESTED.name and shape[1:2] == (-1,):
        shape = (shape[0], None, *shape[2:])
    if any(extent is not None and extent < 0 for extent in shape):
        raise WireError(f"{at}.shape is {list(shape)}; expected no negative extent")
    item_size(message.dtype, at=f"{at}.dtype")
    return RemoteFacts(
        message.dtype,
        shape,
        message.device or "cpu",
        message.dispatch_keys,
        message.requires_grad,
        layout,
        part_bytes,
    )
