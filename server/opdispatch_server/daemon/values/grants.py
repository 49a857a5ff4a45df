"""How much clients may keep, and how much of that direct calls may keep without asking."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple


class ValueLimits(NamedTuple):
    """The limits on the values that one client keeps."""

    values: int
    bytes: int


MOST_GRANTED: Final = ValueLimits(256, 256 << 20)
"""The most values granted at a time."""
# And the largest part of what the client may still keep.
_PART = 8


class Question:
    """A question about a grant that waits for its turn; until then, further askers join it."""

    __slots__ = ("answered", "grants", "release")

    def __init__(self) -> None:
        self.release: set[bytes] = set()
        """Ids and prefixes of values to be released."""
        self.grants = True
        """Whether direct calls may keep values afterwards."""
        self.answered: asyncio.Task[None]


class Grant:
    """How many values and bytes a client's direct calls may keep in one interpreter."""

    __slots__ = ("asking", "bytes", "next", "values")

    def __init__(self) -> None:
        self.values = 0
        self.bytes = 0
        self.asking = asyncio.Lock()
        """Held while the interpreter is asked how much of it has been used."""
        self.next: Question | None = None
        """The question that waits for ``asking``."""


def part_of(values: int, nbytes: int) -> ValueLimits:
    """Return how much to grant of what may still be kept."""
    return ValueLimits(
        min(MOST_GRANTED.values, max(values, 0) // _PART),
        min(MOST_GRANTED.bytes, max(nbytes, 0) // _PART),
    )
