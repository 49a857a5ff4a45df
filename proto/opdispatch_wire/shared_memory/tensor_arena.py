"""The sender's memory for tensors: regions that are reused instead of created for each call.

    allocate(nbytes) -> Block        a block to copy a tensor to, whose place is then sent
    empty(shape, dtype) -> array     an array in the arena, which need not be copied
    Block.release, or its collection the block is free again
    trim()                           returns unused regions to the system

Touching a page for the first time costs ten times as much as copying to it. So freed blocks are
kept by size and reused, the most recently freed first; the arena grows in steps.

Note [A block owns its pages]
    Blocks begin and end at page boundaries (which also aligns them to 64 bytes). So a receiver can
    replace the pages of one block without affecting any other block.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import math
import os
import threading
import time
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from opdispatch_wire.shared_memory.arena_block import Block, Place
from opdispatch_wire.shared_memory.free_extents import FreeExtents
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.memory_region import OwnedRegion
from opdispatch_wire.shared_memory.shared_mapping import PAGE, is_supported

Array: TypeAlias = "np.ndarray[Any, Any]"

LOG = logging.getLogger("opdispatch.memory")

STEP_BYTES = 16 << 20
"""Size of the first region in bytes; each further one is as large as all previous ones together."""

IDLE_SECONDS = 30.0
_MAX_STEP_BYTES = 256 << 20
_CLASSES_PER_DOUBLING = 16


@functools.lru_cache(4096)  # few sizes of tensors recur
def block_size(nbytes: int) -> int:
    """Return the size of a block for ``nbytes``: whole pages, at most a sixteenth too large."""
    pages = max(1, -(-nbytes // PAGE))
    step = 1 << max(0, pages.bit_length() - _CLASSES_PER_DOUBLING.bit_length())
    return -(-pages // step) * step * PAGE


class _Region:
    """A region and its free extents. Guarded by the arena's lock."""

    __slots__ = ("abandoned", "free", "idle_since", "live", "owned", "prepared")

    def __init__(self, owned: OwnedRegion) -> None:
        self.owned = owned
        self.free = FreeExtents(owned.size)
        self.live: dict[int, int] = {}  # size of each block in use, by its offset
        self.prepared = 0  # memory is allocated for the pages below this offset
        self.idle_since: float | None = None
        self.abandoned = False


class TensorArena:
    """Blocks for tensors to send to a peer, in memfds that the peer maps once. Thread-safe.

    A peer can read all of a region that was passed to it, so processes that must not see each
    other's tensors need separate arenas.

    Guards      ``_lock`` guards all fields but ``_freed``, to which any thread may append: the
                garbage collector frees blocks, and may run while this thread holds the lock.
    Invariants  I1  each byte of a region is in a block in use, in a binned block, or free;
                I2  ``_bytes`` is the sum of the regions' sizes, and taken from the budget;
                I3  all pages of a block in use have memory;
                I4  an abandoned region has no binned blocks, and gets no new ones.
    Cost        The arena grows under the lock, so that two threads do not both grow it.
    """

    def __init__(
        self,
        *,
        budget: MemoryBudget | None = None,
        step: int = STEP_BYTES,
        idle_seconds: float = IDLE_SECONDS,
        on_drop: Callable[[int], None] = lambda region: None,
        on_exhausted: Callable[[str], None] = LOG.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the ``budget``, which other arenas may share; by default a new one.

        ``on_drop`` is called with the number of each region that is returned to the system, without
        the lock, so that peers can be told to unmap it. ``on_exhausted`` is called once, with the
        reason, when memory is exhausted.
        """
        self.budget = MemoryBudget() if budget is None else budget
        self._step = step
        self._idle_seconds = idle_seconds
        self._on_drop = on_drop
        self._on_exhausted = on_exhausted
        self._clock = clock
        self._lock = threading.Lock()
        self._freed: deque[Place] = deque()
        self._regions: dict[int, _Region] = {}
        self._numbers = itertools.count(1)  # never reused: a peer may still know an old one
        self._bins: dict[int, list[Place]] = {}
        self._bytes = 0
        self.lent_out: list[tuple[int, weakref.ref[Block]]] = []
        """The blocks of arrays made by ``empty``, sorted by address, for ``find``."""
        self._warned = False
        self._look_again = 0.0
        self._closed = False
        # A forked child has the same pages and a copy of this bookkeeping, so that both processes
        # would use the same blocks: the child allocates none.
        self._process = os.getpid()

    def __del__(self) -> None:
        self.budget.give_back(self._bytes)

    def allocate(self, nbytes: int) -> Block | None:
        """Allocate a block of at least ``nbytes``.

        Return None if memory is exhausted; the tensor then has to be sent inline. The first time,
        ``on_exhausted`` is called.
        """
        size = block_size(nbytes)
        reason = ""
        with self._lock:
            if self._freed:
                self._take_freed_locked()
            places = self._bins.get(size)
            if places and self._clock() < self._look_again and self._process == os.getpid():
                place = places.pop()  # ``_use_locked``, inlined: most blocks come from here
                region = self._regions[place[0]]
                region.live[place[1]] = size
                region.idle_since = None
                return Block(self._freed, place, region.owned.mapping, size)
            dropped = self._drop_idle_now_and_then_locked()
            block = None
            if not self._closed and self._process == os.getpid() and is_supported():
                try:
                    block = self._allocate_locked(size)
                except OSError as exc:
                    reason = str(exc)
            warn = block is None and bool(reason) and not self._warned
            self._warned |= warn
        self._tell(dropped)
        if warn:
            self._on_exhausted(
                f"no shared memory is left for a tensor of {nbytes} bytes ({reason}); such "
                "tensors are sent inline, which is slower"
            )
        return block

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialized array in the arena; an ordinary one if small or without memory.

        Its block is free again when its last view is collected.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        block = self.allocate(nbytes) if nbytes >= PAGE and not dtype.hasobject else None
        if block is None:
            return np.empty(shape, dtype)
        with self._lock:
            insort(self.lent_out, (block.address, weakref.ref(block)), key=_address_of)
        return block.array(shape, dtype)

    def find(self, address: int, nbytes: int) -> Block | None:
        """Return the block of an ``empty`` array that contains these bytes; None if none does."""
        with self._lock:
            i = bisect_right(self.lent_out, address, key=_address_of) - 1
            block = self.lent_out[i][1]() if i >= 0 else None
        if block is None or address + nbytes > block.address + block.size:
            return None
        return block

    def descriptor(self, region: int) -> int:
        """Return the descriptor of a region to pass to a peer, valid while a block in it is held.

        Raises OSError after ``close``.
        """
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the arena is closed")
            return self._regions[region].owned.descriptor

    def abandon(self, regions: Iterable[int]) -> None:
        """Never reuse the pages of these regions, as a receiver may still read them.

        For calls whose lane broke before their reply came; must be called before their blocks are
        released. A region is dropped as soon as none of its blocks is in use; processes that have
        mapped it keep its memory.
        """
        with self._lock:
            self._take_freed_locked()
            self._merge_locked()
            for number in regions:
                if region := self._regions.get(number):
                    region.abandoned = True
            dropped = self._drop_idle_locked(math.inf)
        self._tell(dropped)

    def trim(self, *, idle_seconds: float = 0.0) -> None:
        """Return regions to the system that had no block in use for ``idle_seconds``."""
        with self._lock:
            self._take_freed_locked()
            dropped = self._drop_idle_locked(idle_seconds)
        self._tell(dropped)

    def close(self) -> None:
        """Allocate no more blocks, and drop all regions; blocks in use keep theirs mapped."""
        with self._lock:
            self._closed = True
            self._freed.clear()
            self._bins.clear()
            self.lent_out.clear()
            regions, self._regions = self._regions, {}
            freed, self._bytes = self._bytes, 0
        for region in regions.values():
            region.owned.close()
        self.budget.give_back(freed)
        self._tell(list(regions))

    @property
    def regions(self) -> dict[int, int]:
        """The size of each region, by its number."""
        with self._lock:
            return {number: region.owned.size for number, region in self._regions.items()}

    def check_invariants(self) -> list[str]:
        """Return the violated invariants, one sentence each; empty if all hold."""
        with self._lock:
            self._take_freed_locked()
            faults = []
            if self._bytes != sum(r.owned.size for r in self._regions.values()):
                faults.append("I2: the bytes are not the sum of the regions")
            if self._bytes > self.budget.limit - self.budget.left:
                faults.append(f"I2: {self._bytes} bytes, and {self.budget.left} are left")
            for number, region in self._regions.items():
                parts = [(at, at + size) for at, size in region.live.items()]
                binned = [
                    (at, at + size)
                    for size, places in self._bins.items()
                    for owner, at in places
                    if owner == number
                ]
                parts += binned + region.free.extents()
                parts.sort()
                edges = [0, *itertools.chain(*parts), region.owned.size]
                if edges[::2] != edges[1::2]:
                    faults.append(f"I1: region {number} is not covered once: {parts}")
                if any(at + size > region.prepared for at, size in region.live.items()):
                    faults.append(f"I3: region {number} has no memory under a block in use")
                if region.abandoned and binned:
                    faults.append(f"I4: region {number} is abandoned and has binned blocks")
            return faults

    # -- the caller holds the lock, except for `_tell` -------------------------------------------

    def _allocate_locked(self, size: int) -> Block:
        """Return a block of a size from ``block_size``. Raises OSError if memory is exhausted."""
        if places := self._bins.get(size):
            return self._use_locked(places.pop(), size)
        place = self._carve_locked(size)
        if place is None:
            self._merge_locked()  # adjacent free blocks of other sizes may be large enough
            place = self._carve_locked(size)
        if place is None:
            place = self._grow_locked(size)
        return self._use_locked(place, size)

    def _use_locked(self, place: Place, size: int) -> Block:
        region = self._regions[place[0]]
        region.live[place[1]] = size
        region.idle_since = None
        return Block(self._freed, place, region.owned.mapping, size)

    def _carve_locked(self, size: int) -> Place | None:
        for number, region in self._regions.items():
            if not region.abandoned:
                offset = region.free.take(size)
                if offset is not None:
                    self._prepare_locked(region, offset, size)
                    return number, offset
        return None

    def _prepare_locked(self, region: _Region, offset: int, size: int) -> None:
        stop = offset + size
        if stop > region.prepared:
            try:
                region.owned.prepare(region.prepared, stop - region.prepared)
            except BaseException:
                region.free.give_back(offset, size)
                raise
            region.prepared = stop

    def _grow_locked(self, size: int) -> Place:
        step = min(max(self._step, self._bytes), _MAX_STEP_BYTES)
        step = max(size, min(step, self.budget.left) // PAGE * PAGE)
        self.budget.take(step)
        try:
            owned = OwnedRegion(step)
        except BaseException:
            self.budget.give_back(step)
            raise
        number = next(self._numbers)
        region = self._regions[number] = _Region(owned)
        region.idle_since = self._clock()
        self._bytes += owned.size
        place = self._carve_locked(size)
        if place is None:
            raise OSError("a new region has no room for a block")
        return place

    def _take_freed_locked(self) -> None:
        while self._freed:
            number, offset = place = self._freed.popleft()
            region = self._regions.get(number)
            if region is None:  # the arena is closed
                continue
            size = region.live.pop(offset)
            if region.abandoned:
                region.free.give_back(offset, size)
            else:
                self._bins.setdefault(size, []).append(place)
            if not region.live:
                region.idle_since = self._clock()
            address = region.owned.mapping.address + offset
            i = bisect_right(self.lent_out, address, key=_address_of) - 1
            if i >= 0 and self.lent_out[i][0] == address:
                del self.lent_out[i]

    def _merge_locked(self) -> None:
        for size, places in self._bins.items():
            for number, offset in places:
                self._regions[number].free.give_back(offset, size)
        self._bins.clear()

    def _drop_idle_now_and_then_locked(self) -> list[int]:
        now = self._clock()
        if now < self._look_again:
            return []
        self._look_again = now + self._idle_seconds / 8
        return self._drop_idle_locked(self._idle_seconds)

    def _drop_idle_locked(self, idle_seconds: float) -> list[int]:
        now = self._clock()
        dropped = [
            number
            for number, region in self._regions.items()
            if region.idle_since is not None
            and not region.live
            and (region.abandoned or now - region.idle_since >= idle_seconds)
        ]
        if dropped:
            self._merge_locked()
            for number in dropped:
                region = self._regions.pop(number)
                self._bytes -= region.owned.size
                region.owned.close()
                self.budget.give_back(region.owned.size)
        return dropped

    def _tell(self, dropped: list[int]) -> None:
        for number in dropped:
            self._on_drop(number)


def _address_of(entry: tuple[int, weakref.ref[Block]]) -> int:
    return entry[0]
