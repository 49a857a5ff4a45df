"""The part of protobuf's wire format that is needed to move large fields without copying them.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from opdispatch_wire.errors import WireError

LENGTH_DELIMITED = 2
SHORT = 0x7F
"""Longest content of a length-delimited field whose length is encoded in one byte."""
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """The number, wire type and offsets of one field: from ``start`` (its tag) to ``end``.

    ``body`` is where the content of a length-delimited field begins; otherwise it has no meaning.
    """

    number: int
    wire_type: int
    start: int
    body: int
    end: int


class FieldLimit:
    """A budget of fields to read, shared by several iterators; ``error`` is raised beyond it."""

    def __init__(self, left: int, error: Exception) -> None:
        self.left = left
        self.error = error


def varint(value: int) -> bytes:
    """Encode a number in groups of seven bits, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field_tag(number: int, wire_type: int) -> bytes:
    """Return the encoded tag of a field."""
    return varint(number << 3 | wire_type)


def read_fields(
    message: memoryview,
    start: int,
    end: int,
    *,
    skips_short: bool = False,
    limit: FieldLimit | None = None,
) -> Iterator[Field]:
    """Yield the fields of a message between two offsets.

    Raises WireError if the message is malformed, and the error of ``limit`` if it has more fields
    than that, skipped ones included.

    With ``skips_short``, length-delimited fields of up to SHORT bytes may be skipped. Long lists
    consist of these, and are scanned ten times as fast.
    """
    place = start
    limit = limit or FieldLimit(sys.maxsize, WireError("$ has too many fields"))
    while place < end:
        if skips_short:
            skipped = 0
            for skipped in range(limit.left + 1):  # noqa: B007  # the count is for after the loop
                # A tag and a length of one byte each.
                if not (
                    place + 1 < end
                    and message[place] & 0x87 == LENGTH_DELIMITED
                    and (size := message[place + 1]) <= SHORT
                ):
                    break
                place += 2 + size
            else:
                raise limit.error
            limit.left -= skipped
            if place > end:
                raise WireError(f"$ is not a message: the field before byte {place} is cut off")
            if place == end:
                return
        tag, body = _read_varint(message, place, end)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            size, body = _read_varint(message, body, end)
            after = body + size
        elif wire_type == _VARINT:
            after = _read_varint(message, body, end)[1]
        elif wire_type == _FIXED64:
            after = body + 8
        elif wire_type == _FIXED32:
            after = body + 4
        else:
            raise WireError(
                f"$ is not a message: byte {place} begins a field of unknown type {wire_type}"
            )
        if after > end:
            raise WireError(f"$ is not a message: the field at byte {place} is cut off")
        limit.left -= 1
        if limit.left < 0:
            raise limit.error
        yield Field(tag >> 3, wire_type, place, body, after)
        place = after


def _read_varint(message: memoryview, place: int, end: int) -> tuple[int, int]:
    value = 0
    for i in range(place, min(end, place + _LONGEST_VARINT)):
        byte = message[i]
        value |= (byte & 0x7F) << 7 * (i - place)
        if byte < 0x80:
            return value, i + 1
    raise WireError(f"$ is not a message: the number at byte {place} does not end")
