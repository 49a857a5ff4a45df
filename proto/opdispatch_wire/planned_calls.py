"""Common parts of planned requests and replies, known by their constant bytes. No I/O.

Note [Constant bytes]
    Calls of one operator with arguments of the same kinds, dtypes and shapes differ in their ids,
    their timeouts, and their leaves: the elements and the numbers (see ``variable_parts``).
    Everything else in their messages is constant:

        request    constant_bytes, operator, kernel, ... | leaf | constant | leaf | timeout | id
        reply      id | constant | leaf | constant

    A reader decodes the first such message with protobuf. It recognizes the next one by its
    constants and takes the leaves from their known offsets. Protobuf allows fields in any order,
    so a reader without the plan can still parse the same message the usual way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from opdispatch_wire.shared_leaves import SharedTensor
from opdispatch_wire.variable_parts import Part, Pieces, Place

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

LONGEST: Final = 256 * 1024 - 8
"""Longest planned message in bytes; with its frame's header, it fits in one read of a lane."""

ID: Final = b"\x08"
"""The tag of the id, field 1 of both messages; a varint follows."""
LONGEST_ID: Final = 11
"""Most bytes of the id, with its tag."""


def may_be_planned(schema: FunctionSchema) -> bool:
    """Return whether an operator returns only new values and writes to no argument."""
    aliases = any(each.alias_info for each in (*schema.arguments, *schema.returns))
    return not schema.is_varret and not aliases


def read_id(payload: bytes | memoryview) -> tuple[int, int] | None:
    """Return the id of a reply and the offset where it ends; None if it does not come first."""
    if not payload or payload[0] != ID[0]:
        return None
    number = shift = 0
    for place in range(1, min(len(payload), LONGEST_ID)):
        number |= (payload[place] & 0x7F) << shift
        if payload[place] < 0x80:
            return number, place + 1
        shift += 7
    return None


def size_of(pieces: Pieces) -> int:
    """Return an upper bound of the size in bytes of an id and the pieces."""
    return LONGEST_ID + sum(len(p) if isinstance(p, bytes) else p.size for p in pieces)


def alternating(
    payload: bytes | memoryview, places: Sequence[Place], start: int, end: int
) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the constants before, between and after the places, and the sizes of the parts there.

    The constants begin at ``start`` of the message in ``payload``, and end at ``end``.
    """
    constants, sizes = [], []
    for place in places:
        size = place.end - place.start
        # An empty part has no definite offset, so it does not split a constant.
        constants.append(bytes(payload[start : place.start]) if size else b"")
        start = place.end if size else start
        sizes.append(size)
    constants.append(bytes(payload[start:end]))
    return tuple(constants), tuple(sizes)


def shared_parts(pieces: Pieces) -> tuple[tuple[int, np.dtype[Any]], ...]:
    """Return number and element dtype of each leaf that is written as a SharedPlace."""
    parts = [each for each in pieces if isinstance(each, Part)]
    return tuple((i, part.shared) for i, part in enumerate(parts) if part.shared is not None)


def shared_places(places: Sequence[Place]) -> tuple[tuple[int, SharedTensor], ...]:
    """Return number and facts of each leaf whose elements are in shared memory."""
    return tuple((i, each.shared) for i, each in enumerate(places) if each.shared is not None)
