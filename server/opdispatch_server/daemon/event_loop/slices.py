"""Long work of the event loop, a slice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

SLICE = 500
"""How many items are seen to before others are served."""

Item = TypeVar("Item")


async def in_slices(items: Iterable[Item]) -> AsyncIterator[list[Item]]:
    """Yield the items in lists of at most SLICE. Between two of these anything may happen."""
    iterator = iter(items)
    while part := list(islice(iterator, SLICE)):
        yield part
        if len(part) == SLICE:
            await asyncio.sleep(0)
