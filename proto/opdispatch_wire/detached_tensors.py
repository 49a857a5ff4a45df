"""Detaching large tensors from a serialized message, and attaching them, without copying.

    attach(request, CALL_REQUEST, tensors)    ->  pieces of the same request, with data inline
    detach(payload, CALL_REPLY, threshold)    ->  a small reply, and the data beside it

In place of a tensor's data, the small message has ``Tensor.chunked``. Both functions parse the wire
format, only in the few fields that can contain tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from opdispatch.arrays import LAYOUTS
from opdispatch_wire.chunks import Buffer, CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, serialize_message
from opdispatch_wire.protobuf_fields import (
    LENGTH_DELIMITED,
    SHORT,
    Field,
    FieldLimit,
    field_tag,
    read_fields,
    varint,
)
from opdispatch_wire.tensor_bytes import ALIGNMENT
from opdispatch_wire.v1 import execution_pb2, values_pb2

Payload = bytes | bytearray | memoryview
"""A message, or a part of one."""

# By message, the fields that can contain dense tensors, which are leaves.
_Paths = dict[int, Any]
_TENSOR: _Paths = {}
_VALUE: _Paths = {
    values_pb2.Value.TENSOR_FIELD_NUMBER: _TENSOR,
    values_pb2.Value.PACKED_FIELD_NUMBER: _TENSOR,
}
_VALUE[values_pb2.Value.LIST_FIELD_NUMBER] = {values_pb2.ListValue.ITEMS_FIELD_NUMBER: _VALUE}
_VALUE[values_pb2.Value.DICT_FIELD_NUMBER] = {
    values_pb2.DictValue.ENTRIES_FIELD_NUMBER: {
        values_pb2.DictValue.Entry.VALUE_FIELD_NUMBER: _VALUE
    }
}
for _layout in LAYOUTS.values():
    _kind = values_pb2.Value.DESCRIPTOR.fields_by_name[_layout.name]
    _fields: Any = _kind.message_type
    _VALUE[_kind.number] = {
        _fields.fields_by_name[name].number: _TENSOR for name in _layout.part_names
    }
CALL_REQUEST: _Paths = {
    execution_pb2.CallRequest.ARGS_FIELD_NUMBER: _VALUE,
    execution_pb2.CallRequest.KWARGS_FIELD_NUMBER: {2: _VALUE},  # an entry of a map: key, value
}
"""The fields that lead to the tensors of a CallRequest."""
CALL_REPLY: _Paths = {
    execution_pb2.CallReply.RETURNS_FIELD_NUMBER: _VALUE,
    execution_pb2.CallReply.MUTATIONS_FIELD_NUMBER: {
        execution_pb2.Mutation.VALUE_FIELD_NUMBER: _TENSOR
    },
}
"""The fields that lead to the tensors of a CallReply."""

_DATA = values_pb2.Tensor.DATA_FIELD_NUMBER
_PADDING = values_pb2.Tensor.PADDING_FIELD_NUMBER
_CHUNKED = values_pb2.Tensor.CHUNKED_FIELD_NUMBER
# Twice the nesting limit of values: a list is two messages.
_DEEPEST = 100


class MessagePieces:
    """A message in several pieces; its length is their total."""

    def __init__(self) -> None:
        self.parts: list[Payload] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, part: Payload) -> None:
        """Add a piece."""
        self.parts.append(part)
        self._size += len(part)

    def extend(self, pieces: MessagePieces) -> None:
        """Add all pieces of another message."""
        self.parts += pieces.parts
        self._size += len(pieces)

    def add_field(self, number: int, contents: MessagePieces) -> None:
        """Add a field."""
        self.add(field_tag(number, LENGTH_DELIMITED) + varint(len(contents)))
        self.extend(contents)


def attach(
    message: Payload, paths: _Paths, tensors: Sequence[Buffer], *, aligned: bool = False
) -> MessagePieces:
    """Return the message with the ``tensors`` in place.

    With ``aligned``, nearly all begin at multiples of ALIGNMENT. Raises WireError unless the
    message refers to each of them once, by number and length.
    """
    pieces = _attached(message, paths, tensors, {})
    if aligned and (paddings := _paddings(pieces, tensors)):
        # Padding makes the enclosing messages longer, and rarely also the encoding of their lengths
        # by a byte.
        pieces = _attached(message, paths, tensors, paddings)
    return pieces


def _attached(
    message: Payload, paths: _Paths, tensors: Sequence[Buffer], paddings: Mapping[int, int]
) -> MessagePieces:
    attaching = _Attaching(memoryview(message), tensors, paddings)
    pieces = attaching.rewritten(paths, 0, len(message), 0)
    if attaching.missing:
        raise WireError(
            f"$ refers to {len(tensors) - len(attaching.missing)} tensors in chunks, but "
            f"{len(tensors)} were received"
        )
    return pieces


def _paddings(pieces: MessagePieces, tensors: Sequence[Buffer]) -> dict[int, int]:
    """Return the length of each tensor's padding, by number, in a message without padding."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    paddings: dict[int, int] = {}
    offset = 0
    for part in pieces.parts:
        number = numbers.get(id(part))
        if number is not None and offset % ALIGNMENT:
            # Its tag and its length take one byte each.
            paddings[number] = (-offset - 2) % ALIGNMENT
            offset += 2 + paddings[number]
        offset += len(part)
    return paddings


def detach(
    message: Payload,
    paths: _Paths,
    threshold: int,
    *,
    first: int = 0,
) -> tuple[bytes, list[memoryview]]:
    """Return the message without data of tensors above ``threshold`` bytes, and that data.

    The data stay in ``message``, and are numbered from ``first`` on. Raises WireError for a
    malformed message.
    """
    pieces, tensors = detach_in_place(message, paths, threshold, first=first)
    return b"".join(pieces.parts), tensors


def detach_in_place(
    message: Payload,
    paths: _Paths,
    threshold: int,
    *,
    first: int = 0,
    limit: FieldLimit | None = None,
) -> tuple[MessagePieces, list[memoryview]]:
    """Detach like ``detach``, but leave the message in place, too, in pieces.

    Raises the error of ``limit`` if more fields would have to be parsed.
    """
    detaching = _Detaching(memoryview(message), threshold, first, limit)
    return detaching.rewritten(paths, 0, len(message), 0), detaching.tensors


def text_bytes(message: Payload, paths: _Paths, threshold: int) -> int:
    """Return the total size of the strings that are longer than ``threshold`` bytes.

    Raises WireError for a malformed message.
    """
    view = memoryview(message)

    def within(paths: _Paths, start: int, end: int) -> int:
        total = 0
        for field in read_fields(view, start, end):
            if field.wire_type != LENGTH_DELIMITED:
                continue
            size = field.end - field.body
            if paths is _VALUE and field.number == values_pb2.Value.TEXT_FIELD_NUMBER:
                total += size if size > threshold else 0
            elif size > threshold and (deeper := paths.get(field.number)) is not None:
                total += within(deeper, field.body, field.end)
        return total

    return within(paths, 0, len(view))


class InlineTensors(CallTensors):
    """The large tensors of a call whose caller only sends and receives them inline."""

    def take_results(
        self, reply: execution_pb2.CallReply, results: Sequence[Buffer]
    ) -> execution_pb2.CallReply:
        """Return the reply with the tensors that were received before it."""
        if not results:
            return reply
        pieces = attach(reply.SerializeToString(), CALL_REPLY, results)
        return execution_pb2.CallReply.FromString(b"".join(pieces.parts))


def without_large(
    request: execution_pb2.CallRequest, chunk_bytes: int
) -> tuple[bytes, InlineTensors]:
    """Split a request with inline tensors into a message without large ones, and the large ones.

    With 0 for ``chunk_bytes``, all stay inline.
    """
    tensors = InlineTensors()
    payload = serialize_message(request, MAX_MESSAGE_BYTES_HIGHEST, "the call")
    if chunk_bytes and len(payload) > chunk_bytes:
        payload, tensors.arguments = detach(payload, CALL_REQUEST, chunk_bytes)
    return payload, tensors


class _Rewriting(ABC):
    """One pass through a message. With ``skips_short``, fields that are SHORT contain no tensor."""

    def __init__(
        self, message: memoryview, *, skips_short: bool = False, limit: FieldLimit | None = None
    ) -> None:
        self._message = message
        self._skips_short = skips_short
        self._limit = limit

    def rewritten(self, paths: _Paths, start: int, end: int, depth: int) -> MessagePieces:
        """Return the message between two offsets, with its tensors changed."""
        if depth > _DEEPEST:
            raise WireError(f"$ is nested more than {_DEEPEST} levels deep")
        pieces, kept = MessagePieces(), start
        skips_short = self._skips_short and paths is not _TENSOR
        limit = self._limit
        for field in read_fields(self._message, start, end, skips_short=skips_short, limit=limit):
            if field.wire_type != LENGTH_DELIMITED:
                continue
            changed = MessagePieces()
            if paths is _TENSOR:
                if not self._change_data(field, changed):
                    continue
            elif field.number in paths and self._may_hold_tensors(field):
                inner = self.rewritten(paths[field.number], field.body, field.end, depth + 1)
                changed.add_field(field.number, inner)
            else:
                continue
            if field.start > kept:
                pieces.add(self._message[kept : field.start])
            pieces.extend(changed)
            kept = field.end
        if end > kept:
            pieces.add(self._message[kept:end])
        return pieces

    @abstractmethod
    def _may_hold_tensors(self, field: Field) -> bool:
        """Return whether a field may hold tensors."""

    @abstractmethod
    def _change_data(self, field: Field, pieces: MessagePieces) -> bool:
        """Return whether ``pieces`` replace a field of a tensor."""


class _Attaching(_Rewriting):
    def __init__(
        self, message: memoryview, tensors: Sequence[Buffer], paddings: Mapping[int, int]
    ) -> None:
        super().__init__(message)
        self.missing = dict(enumerate(tensors))
        self._paddings = paddings

    def _may_hold_tensors(self, field: Field) -> bool:
        return True

    def _change_data(self, field: Field, pieces: MessagePieces) -> bool:
        if field.number != _CHUNKED:
            return False
        chunked = values_pb2.ChunkedData()
        chunked.ParseFromString(bytes(self._message[field.body : field.end]))
        tensor = self.missing.pop(chunked.number, None)
        if tensor is None:
            raise WireError(
                f"$ refers to tensor {chunked.number} in chunks, which was not received"
            )
        if len(tensor) != chunked.length:
            raise WireError(
                f"$ says that tensor {chunked.number} in chunks has {chunked.length} bytes, but "
                f"{len(tensor)} were received"
            )
        if (padding := self._paddings.get(chunked.number)) is not None:
            pieces.add(field_tag(_PADDING, LENGTH_DELIMITED) + varint(padding) + bytes(padding))
        pieces.add(field_tag(_DATA, LENGTH_DELIMITED) + varint(len(tensor)))
        pieces.add(tensor)
        return True


class _Detaching(_Rewriting):
    def __init__(
        self, message: memoryview, threshold: int, first: int, limit: FieldLimit | None
    ) -> None:
        super().__init__(message, skips_short=threshold >= SHORT, limit=limit)
        self._threshold = threshold
        self._first = first
        self.tensors: list[memoryview] = []

    def _may_hold_tensors(self, field: Field) -> bool:
        return field.end - field.body > self._threshold

    def _change_data(self, field: Field, pieces: MessagePieces) -> bool:
        if field.number == _PADDING:
            return True  # it would belong at another offset
        size = field.end - field.body
        if field.number != _DATA or size <= self._threshold:
            return False
        number = self._first + len(self.tensors)
        chunked = values_pb2.ChunkedData(number=number, length=size)
        contents = chunked.SerializeToString()
        pieces.add(field_tag(_CHUNKED, LENGTH_DELIMITED) + varint(len(contents)) + contents)
        self.tensors.append(self._message[field.body : field.end])
        return True
