"""Protobuf's wire format, as far as one needs it to move large fields without copying them.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from opdispatch_wire.errors import WireError

LENGTH_DELIMITED = 2
SHORT = 0x7F
"""As long as a field may be whose length is one byte."""
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_LONGEST_VARINT = 10


class Field(NamedTuple):
    """One field of a message: ``start`` to ``end`` are its tag and its contents.

    Only of one that is length-delimited is ``body`` the first byte of what is in it.
    """

    number: int
    wire_type: int
    start: int
    body: int
    end: int


class FieldLimit:
    """How many fields may still be read; ``error`` is raised if more are read."""

    def __init__(self, left: int, error: Exception) -> None:
        self.left = left
        self.error = error


def varint(value: int) -> bytes:
    """Encode a number, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field_tag(number: int, wire_type: int) -> bytes:
    """Return the bytes that precede a field."""
    return varint(number << 3 | wire_type)


def read_fields(
    message: memoryview,
    start: int,
    end: int,
    *,
    skips_short: bool = False,
    limit: FieldLimit | None = None,
) -> Iterator[Field]:
    """Iterate over the fields of the message between two places.

    Raises WireError if it is malformed.

    Raises the error of ``limit`` if there are more than that, left out or not.

    With ``skips_short``, those that are length-delimited and no longer than SHORT may be left out:
    a long list has hardly any others, and is looked through ten times as fast.
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
                raise WireError(f"$ is no message: the field before byte {place} is cut off")
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
            raise WireError(f"$ is no message: byte {place} begins a field of type {wire_type}")
        if after > end:
            raise WireError(f"$ is no message: the field at byte {place} is cut off")
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
    raise WireError(f"$ is no message: the number at byte {place} does not end")
