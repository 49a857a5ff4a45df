"""Limits on the values that clients keep, and grants of a part of them to direct calls."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple


class ValueLimits(NamedTuple):
    """The limits on the values that one client keeps."""

    values: int
    bytes: int


MOST_GRANTED: Final = ValueLimits(256, 256 << 20)
"""The most values granted at a time."""
# A grant is at most one part in so many of the client's remaining limit.
_PART = 8


class Question:
    """A queued question to an interpreter about a grant; requests join it until it is sent."""

    __slots__ = ("answered", "grants", "release")

    def __init__(self) -> None:
        self.release: set[bytes] = set()
        """Ids and prefixes of values to be released."""
        self.grants = True
        """Whether direct calls may keep values afterwards."""
        self.answered: asyncio.Task[None]


class Grant:
    """The values and bytes that a client's direct calls may keep in one interpreter."""

    __slots__ = ("asking", "bytes", "next", "values")

    def __init__(self) -> None:
        self.values = 0
        self.bytes = 0
        self.asking = asyncio.Lock()
        """Held while the interpreter is asked for the values kept under the grant."""
        self.next: Question | None = None
        """The queued question, which waits for ``asking``."""


def part_of(values: int, nbytes: int) -> ValueLimits:
    """Return the grant for a client that may still keep ``values`` values and ``nbytes`` bytes."""
    return ValueLimits(
        min(MOST_GRANTED.values, max(values, 0) // _PART),
        min(MOST_GRANTED.bytes, max(nbytes, 0) // _PART),
    )
