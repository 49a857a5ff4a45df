"""Split the values of planned messages into constant and variable parts. No I/O.

    writer      take_value    ->  a key that values of the same form share, and their leaves
                split_value   ->  the constant bytes of their message, and a Part for each leaf
    reader      find_parts    ->  the places of the leaves, and a template of the value

Leaves are plain arrays and Tensors (their elements or their place in shared memory), remote
tensors (their ids), numbers, bools and texts. None and dtypes are constant. Lists contain leaves.
Integers are written as varints padded to a fixed length, which protobuf accepts.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire import dtypes
from opdispatch_wire.protobuf_fields import LENGTH_DELIMITED, Field, field_tag, read_fields, varint
from opdispatch_wire.shared_leaves import SharedTensor, encode_place, place_bytes
from opdispatch_wire.tensors import plain_key_bits
from opdispatch_wire.v1 import values_pb2
from opdispatch_wire.values import value_from_proto

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_ITEMS: Final = 16
"""Most items of a list. Longer lists of numbers are packed."""
DEEPEST: Final = 3
"""Deepest nesting of lists."""
INTEGER_BYTES: Final = 10
"""Length of every integer: that of the longest varint."""

_TENSOR = field_tag(values_pb2.Value.TENSOR_FIELD_NUMBER, LENGTH_DELIMITED)
_LIST = field_tag(values_pb2.Value.LIST_FIELD_NUMBER, LENGTH_DELIMITED)
_ITEM = field_tag(values_pb2.ListValue.ITEMS_FIELD_NUMBER, LENGTH_DELIMITED)
_TEXT = field_tag(values_pb2.Value.TEXT_FIELD_NUMBER, LENGTH_DELIMITED)
_REMOTE = field_tag(values_pb2.Value.REMOTE_FIELD_NUMBER, LENGTH_DELIMITED)
_REMOTE_ID = field_tag(values_pb2.RemoteTensor.ID_FIELD_NUMBER, LENGTH_DELIMITED)
_DATA = field_tag(values_pb2.Tensor.DATA_FIELD_NUMBER, LENGTH_DELIMITED)
_MEMORY = field_tag(values_pb2.Tensor.MEMORY_FIELD_NUMBER, LENGTH_DELIMITED)
_INTEGER = field_tag(values_pb2.Value.INTEGER_FIELD_NUMBER, 0)
_BOOLEAN = field_tag(values_pb2.Value.BOOLEAN_FIELD_NUMBER, 0)
_FLOATING = field_tag(values_pb2.Value.FLOATING_FIELD_NUMBER, 1)
_DOUBLE = struct.Struct("<d")
_NUMBERS = (bool, int, float, complex)
_BOOLS = (b"\0", b"\1")
_TENSOR_FIELDS = {"dtype", "shape", "data", "memory", "device", "dispatch_keys"}
_ELEMENTS = {values_pb2.Tensor.DATA_FIELD_NUMBER, values_pb2.Tensor.MEMORY_FIELD_NUMBER}
TAKE_VALUE: Final = "__opdispatch_take_value__"
"""A method with which an object does itself what ``take_value`` does; remote tensors have it."""
_WORD = 0xFFFFFFFFFFFFFFFF


class IrregularError(Exception):
    """The message has a value that planned messages do not support."""


Encode = Callable[[Any], "bytes | Array"]
"""Encodes a leaf as a part of a message: bytes, or a contiguous array."""


Decode = Callable[..., Any]
"""Decode a leaf from bytes, at an offset: see ``Place``."""


class Part(NamedTuple):
    """A variable part of a message to write: its size in bytes, and the encoder of its leaf.

    ``shared`` is set for a tensor in shared memory, to the dtype of its elements there. The encoder
    then takes a SharedPlace.
    """

    size: int
    encode: Encode
    shared: np.dtype[Any] | None = None


class Place(NamedTuple):
    """A variable part of a message to read: its offsets, and the decoder of its leaf.

    ``decode`` takes bytes, and the offset of the part in them, which is 0 by default; it raises
    ValueError for malformed bytes. ``shared`` is set for a tensor in shared memory: its leaf is a
    SharedMemory message, whose decoder raises DecodeError. ``remote`` is set for a remote tensor,
    to its message without the id: its leaf is the id.
    """

    start: int
    end: int
    decode: Decode
    shared: SharedTensor | None = None
    remote: values_pb2.RemoteTensor | None = None


class Leaf(NamedTuple):
    """Placeholder in a template for the leaf with that number."""

    number: int


Pieces = list[bytes | Part]


def take_value(value: Any, key: list[Any], leaves: list[Any], depth: int = 0) -> bool:
    """Append the constant facts of a value to ``key``, and its variable parts to ``leaves``.

    Return False for an unsupported value; ``key`` and ``leaves`` are then of no use.
    """
    cls = type(value)
    if cls is np.ndarray:
        key += (value.dtype, value.shape)
        if not value.size:
            return True
    elif cls is Tensor:
        array, meta = value.array, value.autograd_meta
        if type(array) is not np.ndarray or value.requires_grad_flag or not value.key_bits:
            return False
        if meta is not None and value.is_inference():
            return False
        key += (cls, value.key_bits, array.dtype, array.shape)
        if not array.size:
            return True
    elif cls is float:
        key.append(cls)
    elif cls is int:
        if not -(2**63) <= value < 2**63:
            return False
        key.append(cls)
    elif value is None:
        key.append(None)
        return True
    elif cls is bool:
        key.append(cls)
    elif cls is str:
        try:
            value = value.encode()
        except UnicodeEncodeError:
            return False
        key += (cls, len(value))
    elif cls is list or cls is tuple:
        if len(value) > MOST_ITEMS or depth == DEEPEST:
            return False
        key += (list, len(value))
        return all(take_value(each, key, leaves, depth + 1) for each in value)
    elif isinstance(value, np.dtype) or (
        cls is type and (issubclass(value, np.generic) or value in _NUMBERS)
    ):
        key += (cls, value)
        return True
    elif isinstance(value, np.generic) and value.dtype in dtypes.NAMES_OF_DTYPES:
        key += (cls, value.dtype)
    elif (take := getattr(cls, TAKE_VALUE, None)) is not None:
        return bool(take(value, key, leaves))
    else:
        return False
    leaves.append(value)
    return True


def split_value(message: values_pb2.Value, value: Any, *, inline: bool = False) -> Pieces:
    """Return a value's message as constant bytes, and a Part for each of its leaves.

    ``take_value`` must have accepted the value. With ``inline``, tensors in shared memory get a
    Part for their elements instead. Raises IrregularError for an unsupported message.
    """
    kind = message.WhichOneof("kind")
    if kind == "tensor":
        return _split_tensor(message.tensor, value, inline=inline)
    if kind == "floating":
        return [_FLOATING, Part(_DOUBLE.size, _DOUBLE.pack)]
    if kind == "integer":
        return [_INTEGER, Part(INTEGER_BYTES, encode_integer)]
    if kind == "boolean":
        return [_BOOLEAN, Part(1, _BOOLS.__getitem__)]
    if kind == "text":
        size = len(message.text.encode())
        return [_TEXT + varint(size), Part(size, bytes)]
    if kind == "list":
        inner: Pieces = []
        for item, each in zip(message.list.items, value, strict=True):
            inner += nested(_ITEM, split_value(item, each, inline=inline))
        return nested(_LIST, inner)
    if kind == "remote":
        facts = values_pb2.RemoteTensor()
        facts.CopyFrom(message.remote)
        facts.ClearField("id")
        size = len(message.remote.id)
        head = facts.SerializeToString() + _REMOTE_ID + varint(size)
        return nested(_REMOTE, [head, Part(size, bytes)])
    if kind == "none" or kind == "dtype":
        return [message.SerializeToString()]
    raise IrregularError


def nested(tag: bytes, pieces: Pieces) -> Pieces:
    """Return the pieces as the content of a length-delimited field with that tag."""
    size = sum(len(each) if isinstance(each, bytes) else each.size for each in pieces)
    return [tag + varint(size), *pieces]


def joined(pieces: Pieces) -> tuple[tuple[bytes, ...], tuple[Encode, ...]]:
    """Return the constants before, between and after the parts, and the parts' encoders."""
    constants, encoders = [b""], []
    for each in pieces:
        if isinstance(each, bytes):
            constants[-1] += each
        else:
            encoders.append(each.encode)
            constants.append(b"")
    return tuple(constants), tuple(encoders)


def encode_integer(value: int) -> bytes:
    """Return a 64-bit number as a varint padded to INTEGER_BYTES."""
    rest, encoded = value & _WORD, bytearray()
    for _ in range(INTEGER_BYTES - 1):
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _split_tensor(tensor: values_pb2.Tensor, value: Any, *, inline: bool) -> Pieces:
    if {field.name for field, _ in tensor.ListFields()} - _TENSOR_FIELDS:
        raise IrregularError
    facts = values_pb2.Tensor()
    facts.CopyFrom(tensor)
    facts.ClearField("data")
    facts.ClearField("memory")
    dtype = dtypes.WIRE_DTYPES[tensor.dtype]
    size = tensor.memory.length or len(tensor.data)
    if tensor.HasField("memory") and not inline:
        tag, part = _MEMORY, Part(place_bytes(size), encode_place, dtype)
    elif size:
        tag, part = _DATA, Part(size, _encoder_of(value, dtype))
    else:
        return nested(_TENSOR, [tensor.SerializeToString()])
    return nested(_TENSOR, [facts.SerializeToString() + tag + varint(part.size), part])


def _encoder_of(value: Any, dtype: np.dtype[Any]) -> Encode:
    """Return the encoder for values like this one, whose elements are sent as ``dtype``."""
    if type(value) is Tensor:
        encode = _encoder_of(value.array, dtype)
        return lambda tensor: encode(tensor.array)
    if value.dtype != dtype:
        return lambda array: array.astype(dtype).tobytes()
    if type(value) is not np.ndarray:
        return np.generic.tobytes
    if dtype.kind == "b":
        return _encode_bools
    # Arrays of custom dtypes, such as bfloat16, do not support the buffer protocol.
    return np.ascontiguousarray if dtype.isbuiltin == 1 else np.ndarray.tobytes


def _encode_bools(array: Array) -> bytes:
    # Bools may have other bytes than 0 and 1, as a view of uint8 does.
    return np.not_equal(array.view(np.uint8), 0).tobytes()


def find_parts(
    view: memoryview, value: Field, message: values_pb2.Value, places: list[Place], depth: int = 0
) -> Any:
    """Return a template of the value in a field, and append its leaves to ``places``.

    The template is a Leaf, a constant value, or a list of templates. Raises IrregularError for an
    unsupported value, and WireError if the message is malformed.
    """
    kind = message.WhichOneof("kind")
    fields = list(read_fields(view, value.body, value.end))
    if len(fields) != 1:
        raise IrregularError
    field = fields[0]
    size = field.end - field.body
    if kind == "none" or kind == "dtype" or (kind == "integer" and size != INTEGER_BYTES):
        return value_from_proto(message)
    if kind == "list":
        items = list(read_fields(view, field.body, field.end))
        if len(items) != len(message.list.items) or len(items) > MOST_ITEMS or depth == DEEPEST:
            raise IrregularError
        return [
            find_parts(view, item, each, places, depth + 1)
            for item, each in zip(items, message.list.items, strict=True)
        ]
    if kind == "tensor":
        places.append(_find_elements(view, field, message.tensor))
    elif kind == "integer":
        places.append(Place(field.body, field.end, decode_integer))
    elif kind == "floating":
        places.append(Place(field.body, field.end, _decode_floating))
    elif kind == "boolean" and size == 1:
        places.append(Place(field.body, field.end, _decode_bool))
    elif kind == "text":
        places.append(Place(field.body, field.end, functools.partial(_decode_text, size)))
    elif kind == "remote":
        places.append(_find_id(view, field, message.remote))
    else:
        raise IrregularError
    return Leaf(len(places) - 1)


def filled(template: Any, leaves: Sequence[Any]) -> Any:
    """Return the value of a template with those leaves. Lists are new objects each time."""
    if type(template) is Leaf:
        return leaves[template.number]
    if type(template) is list:
        return [filled(each, leaves) for each in template]
    return template


def decode_integer(data: bytes | memoryview, at: int = 0) -> int:
    """Decode a number written by ``encode_integer``. Raises ValueError if it is malformed."""
    data = data[at : at + INTEGER_BYTES]
    if min(data[:-1]) < 0x80 or data[-1] > 1:
        raise ValueError("the bytes are not an integer padded to INTEGER_BYTES")
    number = 0
    for byte in reversed(data):
        number = number << 7 | byte & 0x7F
    return number - (1 << 64) if number >> 63 else number


def _find_elements(view: memoryview, field: Field, tensor: values_pb2.Tensor) -> Place:
    dtype = dtypes.WIRE_DTYPES.get(tensor.dtype)
    fields = list(read_fields(view, field.body, field.end))
    found = [each for each in fields if each.number in _ELEMENTS]
    if {each.name for each, _ in tensor.ListFields()} - _TENSOR_FIELDS or len(found) > 1:
        raise IrregularError
    if dtype is None or tensor.device not in ("", "cpu"):
        raise IrregularError
    shape = tuple(tensor.shape)
    bits = tensor.dispatch_keys
    keys = None if bits in (0, plain_key_bits(tensor.device)) else DispatchKeySet(bits)
    if tensor.HasField("memory"):
        size = math.prod(shape) * dtype.itemsize
        start, end = found[0].body, found[0].end
        if size != tensor.memory.length or end - start != place_bytes(size):
            raise IrregularError
        shared = SharedTensor(shape, dtype, keys, size)
        try:
            shared.blank()
        except ValueError:
            raise IrregularError from None
        return Place(start, end, functools.partial(_decode_memory, end - start), shared)
    make: Any = np.ndarray  # whose stubs have other generics
    decode: Decode = functools.partial(make, shape, dtype)
    try:
        size = decode(tensor.data).nbytes
    except (ValueError, TypeError):
        raise IrregularError from None
    if size != len(tensor.data):
        raise IrregularError
    if dtype.kind == "b":
        decode = functools.partial(_decode_bools, decode, size)
    if keys is not None:
        decode = functools.partial(_decode_tensor, decode, keys)
    if not found:  # it has no elements
        return Place(field.body, field.body, decode)
    return Place(found[0].body, found[0].end, decode)


def _find_id(view: memoryview, field: Field, remote: values_pb2.RemoteTensor) -> Place:
    fields = read_fields(view, field.body, field.end)
    found = [e for e in fields if e.number == values_pb2.RemoteTensor.ID_FIELD_NUMBER]
    if len(found) != 1:
        raise IrregularError
    facts = values_pb2.RemoteTensor()
    facts.CopyFrom(remote)
    facts.ClearField("id")
    start, end = found[0].body, found[0].end
    return Place(start, end, functools.partial(bytes_at, end - start), remote=facts)


def bytes_at(size: int, data: bytes | memoryview, at: int = 0) -> bytes:
    """Return ``size`` bytes from the offset ``at`` on: a decoder, once the size is bound."""
    return bytes(data[at : at + size])


def _decode_memory(size: int, data: bytes | memoryview, at: int = 0) -> values_pb2.SharedMemory:
    return values_pb2.SharedMemory.FromString(bytes(data[at : at + size]))


def _decode_bools(decode: Decode, size: int, data: bytes | memoryview, at: int = 0) -> Array:
    if bytes(data[at : at + size]).translate(None, b"\0\1"):
        raise ValueError("a byte is not a bool; expected 0 or 1")
    array: Array = decode(data, at)
    return array


def _decode_tensor(
    decode: Decode, keys: DispatchKeySet, data: bytes | memoryview, at: int = 0
) -> Tensor:
    return Tensor(decode(data, at), keys=keys)


def _decode_floating(data: bytes | memoryview, at: int = 0) -> float:
    number: float = _DOUBLE.unpack_from(data, at)[0]
    return number


def _decode_bool(data: bytes | memoryview, at: int = 0) -> bool:
    if data[at] > 1:
        raise ValueError("the byte is not a bool; expected 0 or 1")
    return data[at] == 1


def _decode_text(size: int, data: bytes | memoryview, at: int = 0) -> str:
    return str(data[at : at + size], "utf-8")
