"""Messages of calls that are alike, written and read by the bytes that they share. No I/O.

Note [Constant bytes]
    Calls of one operator with arrays of the same dtypes and shapes differ in their ids, the time
    that is left, and the elements. Everything else in their messages is constant:

        request    constant_bytes, operator, kernel, ... | elements | constant | elements |
                   timeout | id
        reply      id | constant | elements | constant

    A reader of one such message, decoded as protobuf does, knows the next one by its constants, and
    takes the rest from its place. Protobuf's fields may stand in any order, so that a reader that
    does not know them reads the same message the usual way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from opdispatch_wire.dtypes import NAMES_OF_DTYPES, WIRE_DTYPES
from opdispatch_wire.errors import WireError
from opdispatch_wire.protobuf_fields import (
    LENGTH_DELIMITED,
    Field,
    field_tag,
    read_fields,
    varint,
)
from opdispatch_wire.v1 import execution_pb2, values_pb2

Array = np.ndarray[Any, Any]

LONGEST: Final = 32 * 1024
"""Bytes of the longest message that is planned.

Longer ones cost what their elements cost, and may be better off in shared memory.
"""

PLAIN_FIELDS: Final = frozenset(
    {"id", "operator", "args", "kernel", "retry", "timeout", "route_epoch", "constant_bytes"}
)
"""Fields that a planned request may have."""

_REQUEST, _REPLY = execution_pb2.CallRequest, execution_pb2.CallReply
_ID = b"\x08"  # field 1 of both, a varint
_ARGUMENT = field_tag(_REQUEST.ARGS_FIELD_NUMBER, LENGTH_DELIMITED)
_RETURN = field_tag(_REPLY.RETURNS_FIELD_NUMBER, LENGTH_DELIMITED)
_TENSOR = field_tag(values_pb2.Value.TENSOR_FIELD_NUMBER, LENGTH_DELIMITED)
_DATA = field_tag(values_pb2.Tensor.DATA_FIELD_NUMBER, LENGTH_DELIMITED)
_TIMEOUT = field_tag(_REQUEST.TIMEOUT_FIELD_NUMBER, 1)
_CONSTANT = field_tag(_REQUEST.CONSTANT_BYTES_FIELD_NUMBER, 5)
_SECONDS = struct.Struct(f"<{len(_TIMEOUT)}sd")
COUNT: Final = struct.Struct(f"<{len(_CONSTANT)}sI")
"""The tag and the value of CallRequest.constant_bytes, with which such a request begins."""


Received = tuple[int, float | None, list[Array]]
"""The id of a request, its timeout, and its arguments, in memory of their own and read-only."""


def request_pieces(
    request: execution_pb2.CallRequest, args: Sequence[Any]
) -> tuple[bytes, ...] | None:
    """Return the constants of a request, to be written before, and after, each array's elements.

    Arguments that are no arrays are constant.

    None if the elements of an argument are not in the message as they lie in its array, or the
    request says what only a call of its own does, such as a span.
    """
    if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
        return None
    head = execution_pb2.CallRequest()
    head.CopyFrom(request)
    for name in ("id", "timeout", "args", "constant_bytes"):
        head.ClearField(name)
    pieces = [head.SerializeToString()]
    for message, array in zip(request.args, args, strict=True):
        if not isinstance(array, np.ndarray):
            value = message.SerializeToString()
            pieces[-1] += _ARGUMENT + varint(len(value)) + value
            continue
        tensor = message.tensor
        if not tensor.data or tensor.dtype == "bool" or array.dtype != WIRE_DTYPES[tensor.dtype]:
            return None
        pieces[-1] += _before_elements(_ARGUMENT, tensor, len(tensor.data))
        pieces.append(b"")
    pieces[0] = COUNT.pack(_CONSTANT, COUNT.size + len(pieces[0])) + pieces[0]
    return tuple(pieces)


def write_request(
    pieces: tuple[bytes, ...], args: Sequence[Array], timeout: float | None, number: int
) -> bytes:
    """Return the request of that id with those constants and elements."""
    message = bytearray(pieces[0])
    for array, constant in zip(args, pieces[1:], strict=True):
        message += array.tobytes()
        message += constant
    if timeout is not None:
        message += _SECONDS.pack(_TIMEOUT, timeout)
    message += _ID
    while number > 0x7F:  # a varint
        message.append(number & 0x7F | 0x80)
        number >>= 7
    message.append(number)
    return bytes(message)


def constant_bytes_of(payload: bytes | memoryview) -> bytes:
    """Return the bytes of a request by which others like it are known; empty if it says none."""
    if type(payload) is not bytes or not COUNT.size < len(payload) <= LONGEST:
        return b""
    tag, count = COUNT.unpack_from(payload)
    return payload[:count] if tag == _CONSTANT else b""


class RequestLayout:
    """Where the parts of such requests are that are not constant. Immutable."""

    __slots__ = ("_between", "_end", "_places", "constant")

    def __init__(
        self,
        constant: bytes,
        places: Sequence[tuple[int, int, tuple[int, ...], np.dtype[Any]]],
        between: Sequence[tuple[int, int, bytes]],
        end: int,
    ) -> None:
        self.constant = constant
        """Those of ``constant_bytes_of``."""
        self._places = places
        self._between = between
        self._end = end

    @classmethod
    def of(cls, payload: bytes, request: execution_pb2.CallRequest) -> RequestLayout | None:
        """Return the layout of a request of plain tensors and constants; None for any other."""
        view, places, last = memoryview(payload), [], len(payload)
        try:
            fields = list(read_fields(view, 0, len(payload)))
            if not fields or fields.pop().number != _REQUEST.ID_FIELD_NUMBER:
                return None
            if fields and fields[-1].number == _REQUEST.TIMEOUT_FIELD_NUMBER:
                fields.pop()
            last = fields[-1].end if fields else 0
            values = iter(request.args)
            for field in fields:
                if field.number in (_REQUEST.ID_FIELD_NUMBER, _REQUEST.TIMEOUT_FIELD_NUMBER):
                    return None
                if field.number == _REQUEST.ARGS_FIELD_NUMBER:
                    value = next(values)
                    if value.WhichOneof("kind") != "tensor":
                        continue
                    tensor, data = value.tensor, _elements_in(view, field)
                    if data is None:
                        return None
                    shape = tuple(tensor.shape)
                    places.append((data.body, data.end, shape, WIRE_DTYPES[tensor.dtype]))
        except (WireError, StopIteration, KeyError):
            return None
        if request.constant_bytes != (places[0][0] if places else last):
            return None
        between = []
        for index, place in enumerate(places):
            end = places[index + 1][0] if index + 1 < len(places) else last
            between.append((place[1], end, payload[place[1] : end]))
        constant = payload[: request.constant_bytes]
        return cls(constant, places, [each for each in between if each[2]], last)

    def read(self, payload: bytes) -> Received | None:
        """Return what a request with the same constant bytes has else; None if it is another."""
        for start, end, constant in self._between:
            if payload[start:end] != constant:
                return None
        place, timeout = self._end, None
        if payload[place : place + 1] == _TIMEOUT:
            if len(payload) < place + _SECONDS.size:
                return None
            timeout = _SECONDS.unpack_from(payload, place)[1]
            place += _SECONDS.size
        if payload[place : place + 1] != _ID:
            return None
        number = shift = 0
        for byte in payload[place + 1 :]:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            return None
        if len(payload) != place + 1 + shift // 7 or shift > 63:
            return None
        arguments: list[Array] = []
        for start, end, shape, dtype in self._places:
            # Copied, for their alignment.
            arguments.append(np.ndarray(shape, dtype, payload[start:end]))
        return number, timeout, arguments


class ReplyForm:
    """Replies with one plain array of the same dtype and shape, from the same process. Immutable.

    The callee writes them, and the caller knows them, by their constants.
    """

    __slots__ = ("_after", "_before", "_dtype", "_shape", "_size")

    def __init__(
        self, before: bytes, after: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._before = before
        self._after = after
        self._shape = shape
        self._dtype = dtype
        self._size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    @classmethod
    def to_write(cls, array: Array, interpreter: str) -> ReplyForm | None:
        """Return the form of replies with arrays like this; None if they are not plain."""
        name = NAMES_OF_DTYPES.get(array.dtype)
        if name is None or name == "bool" or WIRE_DTYPES[name] != array.dtype or not array.size:
            return None
        tensor = values_pb2.Tensor(dtype=name, shape=array.shape, device="cpu")
        head = execution_pb2.CallReply(interpreter=interpreter).SerializeToString()
        before = head + _before_elements(_RETURN, tensor, array.nbytes)
        return cls(before, b"", array.shape, array.dtype)

    @classmethod
    def of(cls, payload: bytes | memoryview, reply: execution_pb2.CallReply) -> ReplyForm | None:
        """Return the form of a reply that was read; None if its result is no plain array."""
        if len(reply.returns) != 1 or reply.returns[0].WhichOneof("kind") != "tensor":
            return None
        tensor = reply.returns[0].tensor
        usual = {"dtype", "shape", "data", "device"}
        if {field.name for field, _ in tensor.ListFields()} - usual or tensor.device != "cpu":
            return None
        if {field.name for field, _ in reply.ListFields()} - {"id", "returns", "interpreter"}:
            return None
        dtype = WIRE_DTYPES.get(tensor.dtype)
        if dtype is None or tensor.dtype == "bool" or not tensor.data:
            return None
        view = memoryview(payload)
        fields = list(read_fields(view, 0, len(view)))
        data = None
        for field in fields[1:]:
            if field.number == _REPLY.RETURNS_FIELD_NUMBER:
                data = _elements_in(view, field)
        if data is None or fields[0].number != _REPLY.ID_FIELD_NUMBER:
            return None
        before, after = bytes(view[fields[0].end : data.body]), bytes(view[data.end :])
        form = cls(before, after, tuple(tensor.shape), dtype)
        return form if form._size == len(tensor.data) else None

    def write(self, number: int, array: Array) -> bytes | None:
        """Return the reply of that id with an array; None if it needs another form."""
        if array.shape != self._shape or array.dtype != self._dtype:
            return None
        message = bytearray(_ID)
        while number > 0x7F:  # a varint
            message.append(number & 0x7F | 0x80)
            number >>= 7
        message.append(number)
        message += self._before
        message += array.tobytes()
        message += self._after
        return bytes(message)

    def read(self, payload: bytes | memoryview, place: int) -> Array | None:
        """Return the array in a reply whose id ends at ``place``; None if it has another form."""
        start = place + len(self._before)
        end = start + self._size
        if (
            len(payload) != end + len(self._after)
            or payload[place:start] != self._before
            or payload[end:] != self._after
        ):
            return None
        return np.ndarray(self._shape, self._dtype, payload, start).copy()


def _before_elements(field: bytes, tensor: values_pb2.Tensor, length: int) -> bytes:
    """Return the bytes before the elements of a value in that field, which end it."""
    facts = values_pb2.Tensor()
    facts.CopyFrom(tensor)
    facts.ClearField("data")
    inner = facts.SerializeToString() + _DATA + varint(length)
    value = _TENSOR + varint(len(inner) + length) + inner
    return field + varint(len(value) + length) + value


def _elements_in(view: memoryview, value: Field) -> Field | None:
    """Return the only elements in a value that is a tensor; None if there are none, or more."""
    tensors = list(read_fields(view, value.body, value.end))
    if len(tensors) != 1 or tensors[0].number != values_pb2.Value.TENSOR_FIELD_NUMBER:
        return None
    found = [
        field
        for field in read_fields(view, tensors[0].body, tensors[0].end)
        if field.number == values_pb2.Tensor.DATA_FIELD_NUMBER
    ]
    return found[0] if len(found) == 1 else None
