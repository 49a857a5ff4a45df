"""Messages of calls that are alike, by the bytes that they share: what both kinds have. No I/O.

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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from opdispatch_wire.shared_leaves import SharedTensor
from opdispatch_wire.variable_parts import Part, Pieces, Place

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

LONGEST: Final = 256 * 1024 - 8
"""Bytes of the longest message that is planned: with its frame's header, what is read at once."""

ID: Final = b"\x08"
"""The tag of the id, field 1 of both messages; a varint follows."""
LONGEST_ID: Final = 11
"""Bytes of the id at most."""


def may_be_planned(schema: FunctionSchema) -> bool:
    """Return whether an operator returns only new values, and writes to no argument."""
    aliases = any(each.alias_info for each in (*schema.arguments, *schema.returns))
    return not schema.is_varret and not aliases


def read_id(payload: bytes | memoryview) -> tuple[int, int] | None:
    """Return the id of a reply and the place where it ends; None if no id comes first."""
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
    """Return how many bytes the pieces have, and an id, at most."""
    return LONGEST_ID + sum(len(p) if isinstance(p, bytes) else p.size for p in pieces)


def shared_parts(pieces: Pieces) -> tuple[tuple[int, np.dtype[Any]], ...]:
    """Return the leaves that are SharedPlaces, and the dtypes of the elements there."""
    parts = [each for each in pieces if isinstance(each, Part)]
    return tuple((i, part.shared) for i, part in enumerate(parts) if part.shared is not None)


def shared_places(places: Sequence[Place]) -> tuple[tuple[int, SharedTensor], ...]:
    """Return the leaves whose elements are in shared memory, and their facts."""
    return tuple((i, each.shared) for i, each in enumerate(places) if each.shared is not None)
