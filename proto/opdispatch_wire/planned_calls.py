"""Messages of calls that are alike, written and read by the bytes that they share. No I/O.

Note [Constant bytes]
    Calls of one operator with arguments of the same kinds, dtypes and shapes differ in their ids,
    the time that is left, the elements and the numbers: their leaves (``variable_parts``).
    Everything else in their messages is constant:

        request    constant_bytes, operator, kernel, ... | leaf | constant | leaf | timeout | id
        reply      id | constant | leaf | constant

    A reader of one such message, decoded as protobuf does, knows the next one by its constants, and
    takes the rest from its place. Protobuf's fields may stand in any order, so that a reader that
    does not know them reads the same message the usual way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from opdispatch.boxing.named_results import make_results
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting import ValueCount
from opdispatch_wire.protobuf_fields import LENGTH_DELIMITED, field_tag, read_fields, varint
from opdispatch_wire.shared_leaves import ReadableMemory, SharedPlace, SharedTensor, read_shared
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import fill_value
from opdispatch_wire.variable_parts import (
    Encode,
    IrregularError,
    Leaf,
    Part,
    Pieces,
    Place,
    filled,
    find_parts,
    joined,
    nested,
    split_value,
    take_value,
)

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

Array = np.ndarray[Any, Any]

LONGEST: Final = 144 * 1024
"""Bytes of the longest message that is planned.

Two arrays that are just too small for shared memory fit in.
"""

PLAIN_FIELDS: Final = frozenset(
    {"id", "operator", "args", "kwargs", "kernel", "retry", "timeout", "route_epoch"}
    | {"constant_bytes"}
)
"""Fields that a planned request may have."""

_REQUEST, _REPLY = execution_pb2.CallRequest, execution_pb2.CallReply
_ID = b"\x08"  # field 1 of both, a varint
_ARGUMENT = field_tag(_REQUEST.ARGS_FIELD_NUMBER, LENGTH_DELIMITED)
_KEYWORD = field_tag(_REQUEST.KWARGS_FIELD_NUMBER, LENGTH_DELIMITED)
# Those of an entry of a map.
_NAME, _NAMED = field_tag(1, LENGTH_DELIMITED), field_tag(2, LENGTH_DELIMITED)
_RETURN = field_tag(_REPLY.RETURNS_FIELD_NUMBER, LENGTH_DELIMITED)
_TIMEOUT = field_tag(_REQUEST.TIMEOUT_FIELD_NUMBER, 1)
_CONSTANT = field_tag(_REQUEST.CONSTANT_BYTES_FIELD_NUMBER, 5)
_LONGEST_ID = 11
_SECONDS = struct.Struct(f"<{len(_TIMEOUT)}sd")
COUNT: Final = struct.Struct(f"<{len(_CONSTANT)}sI")
"""The tag and the value of CallRequest.constant_bytes, with which such a request begins."""

Received = tuple[int, float | None, list[Any]]
"""The id of a request, its timeout, and its leaves; arrays are read-only, and own their memory.

Of tensors in shared memory the leaves are ``SharedMemory`` messages: see ``RequestLayout.shared``.
"""


PlaceResult = Callable[[Any, np.dtype[Any]], SharedPlace | None]
"""Copies a tensor into shared memory, as that dtype; None if there is no room."""


def may_be_planned(schema: FunctionSchema) -> bool:
    """Return whether an operator returns only new values, and writes to no argument."""
    aliases = any(each.alias_info for each in (*schema.arguments, *schema.returns))
    return not schema.is_varret and not aliases


class RequestForm:
    """Requests of calls that are alike, for their caller. Immutable."""

    __slots__ = ("_constants", "_encoders", "shared", "size")

    def __init__(
        self,
        constants: tuple[bytes, ...],
        encoders: tuple[Encode, ...],
        size: int,
        shared: tuple[tuple[int, np.dtype[Any]], ...] = (),
    ) -> None:
        self._constants = constants
        self._encoders = encoders
        self.size = size
        """The size of a request in bytes, at most."""
        self.shared = shared
        """The leaves that are SharedPlaces, and the dtypes of the elements there."""

    @classmethod
    def of(
        cls,
        request: execution_pb2.CallRequest,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
    ) -> RequestForm | None:
        """Return the form of requests like the one that was made of those arguments.

        ``take_value`` takes each of them. None if the elements of one are not in the message, or
        the request says what only a call of its own does, such as a span.
        """
        if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
            return None
        head = execution_pb2.CallRequest()
        head.CopyFrom(request)
        for name in ("id", "timeout", "args", "kwargs", "constant_bytes"):
            head.ClearField(name)
        pieces: Pieces = [head.SerializeToString()]
        try:
            for message, value in zip(request.args, args, strict=True):
                pieces += nested(_ARGUMENT, split_value(message, value))
            for name, value in (kwargs or {}).items():
                text = name.encode()
                entry = nested(_NAMED, split_value(request.kwargs[name], value))
                pieces += nested(_KEYWORD, [_NAME + varint(len(text)) + text, *entry])
        except IrregularError:
            return None
        constants, encoders = joined(pieces)
        first = COUNT.pack(_CONSTANT, COUNT.size + len(constants[0])) + constants[0]
        size = sum(len(each) if isinstance(each, bytes) else each.size for each in pieces)
        size += COUNT.size + _SECONDS.size + _LONGEST_ID
        return cls((first, *constants[1:]), encoders, size, _places_of(pieces))

    def write(self, leaves: Sequence[Any], timeout: float | None, number: int) -> bytes:
        """Return the request of that id with those leaves."""
        pieces: list[Any] = [self._constants[0]]
        for encode, leaf, constant in zip(self._encoders, leaves, self._constants[1:], strict=True):
            pieces += (encode(leaf), constant)
        if timeout is not None:
            pieces.append(_SECONDS.pack(_TIMEOUT, timeout))
        last = bytearray(_ID)
        while number > 0x7F:  # a varint
            last.append(number & 0x7F | 0x80)
            number >>= 7
        last.append(number)
        pieces.append(last)
        return b"".join(pieces)


def _places_of(pieces: Pieces) -> tuple[tuple[int, np.dtype[Any]], ...]:
    """Return the leaves that are SharedPlaces, and the dtypes of the elements there."""
    parts = [each for each in pieces if isinstance(each, Part)]
    return tuple((i, part.shared) for i, part in enumerate(parts) if part.shared is not None)


def _shared_of(places: Sequence[Place]) -> tuple[tuple[int, SharedTensor], ...]:
    return tuple((i, each.shared) for i, each in enumerate(places) if each.shared is not None)


def constant_bytes_of(payload: bytes | memoryview) -> bytes:
    """Return the bytes of a request by which others like it are known; empty if it says none."""
    if type(payload) is not bytes or not COUNT.size < len(payload) <= LONGEST:
        return b""
    tag, count = COUNT.unpack_from(payload)
    return payload[:count] if tag == _CONSTANT else b""


def read_id(payload: bytes | memoryview) -> tuple[int, int] | None:
    """Return the id of a reply and the place where it ends; None if no id comes first."""
    if not payload or payload[0] != _ID[0]:
        return None
    number = shift = 0
    for place in range(1, min(len(payload), _LONGEST_ID)):
        number |= (payload[place] & 0x7F) << shift
        if payload[place] < 0x80:
            return number, place + 1
        shift += 7
    return None


class RequestLayout:
    """Where the parts of such requests are that are not constant. Immutable."""

    __slots__ = ("_between", "_end", "_places", "args", "constant", "kwargs", "shared")

    def __init__(
        self,
        constant: bytes,
        places: Sequence[Place],
        between: Sequence[tuple[int, int, bytes]],
        end: int,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self.constant = constant
        """Those of ``constant_bytes_of``."""
        self._places = [each[:3] for each in places]
        self.shared = _shared_of(places)
        """The leaves whose elements are in shared memory, and their facts."""
        self._between = between
        self._end = end
        self.args = args
        """Templates of the arguments by position: see ``filled``."""
        self.kwargs = kwargs
        """Those by name."""

    @classmethod
    def of(cls, payload: bytes, request: execution_pb2.CallRequest) -> RequestLayout | None:
        """Return the layout of a request of plain values; None for any other."""
        view, last = memoryview(payload), len(payload)
        places: list[Place] = []
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
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
                    args.append(find_parts(view, field, next(values), places))
                elif field.number == _REQUEST.KWARGS_FIELD_NUMBER:
                    key, value = read_fields(view, field.body, field.end)
                    name = bytes(view[key.body : key.end]).decode()
                    if (key.number, value.number) != (1, 2) or name not in request.kwargs:
                        return None
                    kwargs[name] = find_parts(view, value, request.kwargs[name], places)
        except (WireError, IrregularError, StopIteration, ValueError):
            return None
        count = request.constant_bytes
        if not COUNT.size <= count <= last or len(kwargs) != len(request.kwargs):
            return None
        if any(place.start < count for place in places if place.end > place.start):
            return None
        between, start = [], count
        for place in places:
            if place.end > place.start:
                between.append((start, place.start, payload[start : place.start]))
                start = place.end
        between.append((start, last, payload[start:last]))
        constants = [each for each in between if each[2]]
        return cls(payload[:count], places, constants, last, args, kwargs)

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
        leaves: list[Any] = []
        try:
            for start, end, decode in self._places:
                # Copied, for their alignment.
                leaves.append(decode(payload[start:end]))
        except (ValueError, DecodeError):
            return None
        return number, timeout, leaves

    def filled_with(self, leaves: list[Any], memory: ReadableMemory) -> list[Any]:
        """Return the leaves of a request with those in shared memory read. Raises WireError."""
        read = leaves.copy()
        for number, facts in self.shared:
            read[number] = read_shared(memory, leaves[number], facts, writable=False)
        return read


class ReplyForm:
    """Replies with results of the same kinds, dtypes and shapes from one process. Immutable.

    The callee writes them, and the caller knows them, by their constants.
    """

    __slots__ = ("_constants", "_encoders", "_key", "shared", "tensor_bytes")

    def __init__(
        self,
        key: tuple[Any, ...],
        tensor_bytes: int,
        constants: tuple[bytes, ...],
        encoders: tuple[Encode, ...],
        shared: tuple[tuple[int, np.dtype[Any]], ...] = (),
    ) -> None:
        self._key = key
        self.tensor_bytes = tensor_bytes
        """Those of ``count_bytes``, of all results."""
        self._constants = constants
        self._encoders = encoders
        self.shared = shared
        """The results that are placed in shared memory, and the dtypes of the elements there."""

    @classmethod
    def of(
        cls,
        returns: Sequence[Any],
        interpreter: str,
        names: tuple[str, ...] = (),
        *,
        shares: bool = False,
    ) -> ReplyForm | None:
        """Return the form of replies with results like these; None if they are not plain.

        Where the two sides share memory, large ones are in it.
        """
        key: list[Any] = []
        leaves: list[Any] = []
        if not all(take_value(value, key, leaves) for value in returns):
            return None
        if not shares and sum(map(_size_of, leaves)) > LONGEST:
            return None
        reply = execution_pb2.CallReply(interpreter=interpreter)
        pieces: Pieces = [reply.SerializeToString()]
        count, memory = ValueCount(), _LargeTensors() if shares else None
        try:
            for value in returns:
                message = reply.returns.add()
                fill_value(message, value, at="$", count=count, memory=memory)
                pieces += nested(_RETURN, split_value(message, value))
        except (WireError, IrregularError):
            return None
        if names:
            last = execution_pb2.CallReply()
            last.result_names.add(names=names)
            pieces.append(last.SerializeToString())
        if sum(each.size for each in pieces if isinstance(each, Part)) > LONGEST:
            return None
        return cls(tuple(key), count_bytes(returns), *joined(pieces), _places_of(pieces))

    def write(
        self, number: int, returns: Sequence[Any], place: PlaceResult | None = None
    ) -> bytes | None:
        """Return the reply of that id with these results; None if they need another form.

        Those that are ``shared`` are placed by ``place``; None also if it has no room.
        """
        key: list[Any] = []
        leaves: list[Any] = []
        for value in returns:
            if type(value) is np.ndarray and value.size:  # ``take_value``, in line
                key += (value.dtype, value.shape)
                leaves.append(value)
            elif not take_value(value, key, leaves):
                return None
        if tuple(key) != self._key:
            return None
        for at, dtype in self.shared:
            placed = place(leaves[at], dtype) if place is not None else None
            if placed is None:
                return None
            leaves[at] = placed
        message = bytearray(_ID)
        while number > 0x7F:  # a varint
            message.append(number & 0x7F | 0x80)
            number >>= 7
        message.append(number)
        pieces: list[Any] = [message, self._constants[0]]
        for encode, leaf, constant in zip(self._encoders, leaves, self._constants[1:], strict=True):
            pieces += (encode(leaf), constant)
        return b"".join(pieces)


class _LargeTensors:
    """A ``TensorMemory`` that says which tensors would be in it."""

    def place(
        self, message: values_pb2.Tensor, array: Array, dtype: np.dtype[Any], value: object
    ) -> bool:
        """Return whether the elements would be in memory, and say so in ``message``."""
        if array.nbytes < THRESHOLD:
            return False
        message.memory.length = array.nbytes
        return True

    def read(
        self,
        message: values_pb2.Tensor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Raise WireError: nothing is there."""
        raise WireError(f"{at}.memory: nothing has been placed")


def _size_of(leaf: Any) -> int:
    """Return the size of a leaf in bytes; 0 for a number."""
    if type(leaf) is bytes:
        return len(leaf)
    array = leaf.array if type(leaf) is Tensor else leaf
    return array.nbytes if isinstance(array, np.ndarray) else 0


class ReplyLayout:
    """Where the results are in such replies, counted from the end of their ids. Immutable."""

    __slots__ = ("_between", "_names", "_places", "_size", "_templates", "shared")

    def __init__(
        self,
        places: Sequence[Place],
        between: Sequence[tuple[int, int, bytes]],
        size: int,
        templates: list[Any],
        names: tuple[str, ...],
    ) -> None:
        self._places = [each[:3] for each in places]
        self.shared = _shared_of(places)
        """The leaves whose elements are in shared memory, and their facts."""
        self._between = between
        self._size = size
        self._templates = None if templates == [Leaf(0)] else templates
        self._names = names

    @classmethod
    def of(cls, payload: bytes | memoryview, reply: execution_pb2.CallReply) -> ReplyLayout | None:
        """Return the layout of a reply that was read; None if a result is not plain."""
        usual = {"id", "returns", "interpreter", "result_names"}
        if {field.name for field, _ in reply.ListFields()} - usual:
            return None
        view, places = memoryview(payload), list[Place]()
        templates: list[Any] = []
        values = iter(reply.returns)
        try:
            fields = list(read_fields(view, 0, len(view)))
            if not fields or fields[0].number != _REPLY.ID_FIELD_NUMBER:
                return None
            for field in fields[1:]:
                if field.number == _REPLY.ID_FIELD_NUMBER:
                    return None
                if field.number == _REPLY.RETURNS_FIELD_NUMBER:
                    templates.append(find_parts(view, field, next(values), places))
        except (WireError, IrregularError, StopIteration):
            return None
        base, start, between = fields[0].end, fields[0].end, []
        for place in places:
            if place.end > place.start:
                between.append((start, place.start))
                start = place.end
        between.append((start, len(view)))
        names = tuple(reply.result_names[0].names) if reply.result_names else ()
        return cls(
            [p._replace(start=p.start - base, end=p.end - base) for p in places],
            [(a - base, b - base, bytes(view[a:b])) for a, b in between if b > a],
            len(view) - base,
            templates,
            names if len(names) == len(templates) else (),
        )

    def read(
        self, payload: bytes | memoryview, place: int, memory: ReadableMemory | None = None
    ) -> tuple[Any] | None:
        """Return the result in a reply whose id ends at ``place``, in a tuple of its own.

        None if it has another form, or is in shared memory and that is not given. Arrays are
        writable. Raises WireError if there is no such memory.
        """
        if self.shared and memory is None:
            return None
        if len(payload) != place + self._size:
            return None
        for start, end, constant in self._between:
            if payload[place + start : place + end] != constant:
                return None
        leaves: list[Any] = []
        view = memoryview(payload)
        try:
            for start, end, decode in self._places:
                leaf = decode(view[place + start : place + end])
                if type(leaf) is np.ndarray:
                    leaf = leaf.copy()
                elif type(leaf) is Tensor:
                    leaf.array = leaf.array.copy()
                leaves.append(leaf)
        except (ValueError, DecodeError):
            return None
        if memory is not None:  # last: what has been read there is the caller's
            for number, facts in self.shared:
                leaves[number] = read_shared(memory, leaves[number], facts, writable=True)
        templates = self._templates
        if templates is None:
            return (leaves[0],)
        values = [filled(each, leaves) for each in templates]
        if len(values) == 1:
            return (values[0],)
        if self._names:
            return (make_results(self._names, values),)
        return (tuple(values) if values else None,)
