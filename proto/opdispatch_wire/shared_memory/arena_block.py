"""A block of an arena's memory; see ``tensor_arena``."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, TypeAlias

import numpy as np

from opdispatch_wire.shared_memory.shared_mapping import SharedMapping, Window

Array: TypeAlias = "np.ndarray[Any, Any]"

Place = tuple[int, int]
"""A region's number, and the offset in it."""


class Block:
    """A block of an arena, which is free again when it is released or collected. Thread-safe."""

    __slots__ = ("__weakref__", "_held", "address", "mapping", "offset", "region", "size")

    def __init__(self, held: deque[Place], place: Place, mapping: SharedMapping, size: int) -> None:
        self.region, self.offset = place
        self.size = size
        self.address = mapping.address + self.offset
        self.mapping = mapping
        self._held = [(held, place)]  # popping is atomic: only the first ``release`` frees it

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, skip: int = 0) -> Array:
        """Return an array over the block, from byte ``skip`` on, which keeps the block alive.

        The block must be large enough, and must not be released while the array is in use.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        return Window(self, self.address + skip, nbytes, writable=True).array(shape, dtype)

    def release(self) -> None:
        """Free the block. Idempotent. Takes no lock, so that the garbage collector may call it."""
        try:
            freed, place = self._held.pop()
        except IndexError:
            return
        freed.append(place)

    def __del__(self) -> None:
        if self._held:
            self.release()

    def __repr__(self) -> str:
        state = "held" if self._held else "free"
        return f"<Block region {self.region} at {self.offset}, {self.size} bytes, {state}>"
