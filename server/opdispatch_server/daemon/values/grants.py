"""How much clients may keep, and how much of that direct calls may without asking."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple


class ValueLimits(NamedTuple):
    """The limits of the values that one client keeps."""

    values: int
    bytes: int


MOST_GRANTED: Final = ValueLimits(256, 256 << 20)
"""How much is granted at a time, at most."""
# And at most this part of what the client may keep still.
_PART = 8


class Grant:
    """A number of values, and bytes, that a client's direct calls may keep in one interpreter."""

    __slots__ = ("asking", "bytes", "values")

    def __init__(self) -> None:
        self.values = 0
        self.bytes = 0
        self.asking = asyncio.Lock()
        """Held by who asks what of it was used."""


def part_of(values: int, nbytes: int) -> ValueLimits:
    """Return what is granted of so many values, and bytes, that may be kept still."""
    return ValueLimits(
        min(MOST_GRANTED.values, max(values, 0) // _PART),
        min(MOST_GRANTED.bytes, max(nbytes, 0) // _PART),
    )
