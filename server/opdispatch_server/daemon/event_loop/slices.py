"""Long work in the event loop, one slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

SLICE = 500
"""How many items are processed before other tasks run."""

Item = TypeVar("Item")


async def in_slices(items: Iterable[Item]) -> AsyncIterator[list[Item]]:
    """Yield the items in lists of at most SLICE. Other tasks may run between two of them."""
    iterator = iter(items)
    while part := list(islice(iterator, SLICE)):
        yield part
        if len(part) == SLICE:
            await asyncio.sleep(0)
