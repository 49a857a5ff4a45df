"""The sender's memory for tensors: regions that are reused, warm, rather than made for each call.

    allocate(nbytes) -> Block        a place to copy a tensor to; the caller sends where it is
    empty(shape, dtype) -> array     an array that is there already, and so are its slices
    Block.release, or its collection the place is free again
    trim()                           unused regions go back to the system

A page touched for the first time costs ten times what copying to it does. So freed blocks are
kept by size and handed out again, the most recently freed first; regions grow in steps.

Note [A block owns its pages]
    Blocks begin and end at pages (which also aligns them to 64 bytes). A receiver can so put
    other pages under the view of one block without touching any other block.
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
"""The size of the first region; each further one is as large as all before it together."""

IDLE_SECONDS = 30.0
_MAX_STEP_BYTES = 256 << 20
_CLASSES_PER_DOUBLING = 16


@functools.lru_cache(4096)  # tensors of few sizes come again and again
def block_size(nbytes: int) -> int:
    """Return the size of the block for that many bytes.

    Whole pages, at most a sixteenth too large.
    """
    pages = max(1, -(-nbytes // PAGE))
    step = 1 << max(0, pages.bit_length() - _CLASSES_PER_DOUBLING.bit_length())
    return -(-pages // step) * step * PAGE


class _Region:
    """A region with what is free in it; guarded by the arena's lock."""

    __slots__ = ("abandoned", "free", "idle_since", "live", "owned", "prepared")

    def __init__(self, owned: OwnedRegion) -> None:
        self.owned = owned
        self.free = FreeExtents(owned.size)
        self.live: dict[int, int] = {}  # size of each block in use, by its offset
        self.prepared = 0  # up to here there is memory under the pages
        self.idle_since: float | None = None
        self.abandoned = False


class TensorArena:
    """Blocks for tensors that go to a peer, in memfds that the peer maps once.

    A peer can read all of a region once it was passed to it: processes that must not see each
    other's tensors need an arena each.

    Guards      ``_lock`` guards all fields but ``_freed``, to which any thread may append: blocks
                are freed by the collector, which may strike while this thread holds the lock.
    Invariants  I1  a byte of a region is either in a block in use, or in a binned one, or free;
                I2  ``_bytes`` is the sum of the regions' sizes, and taken from the budget;
                I3  a block in use has memory under all of its pages;
                I4  an abandoned region has no binned blocks, and gets no new ones.
    Cost        Growing is done under the lock, so that two threads do not both grow.
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
        """Use ``budget``, which may be shared with other arenas, or one of its own.

        ``on_drop`` is called with the number of each region that is returned to the system, without
        a lock held, so that peers can be told to unmap it. ``on_exhausted`` is called once with the
        reason when memory is short.
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
        """The blocks of ``empty``, by address: ``find`` looks through them."""
        self._warned = False
        self._look_again = 0.0
        self._closed = False
        # A forked child has the same pages and a copy of this bookkeeping: both would hand out
        # the same blocks.
        self._process = os.getpid()

    def __del__(self) -> None:
        self.budget.give_back(self._bytes)

    def allocate(self, nbytes: int) -> Block | None:
        """Allocate a block of at least that many bytes.

        Return None if memory is exhausted: send inline then.

        The first time that it is, ``on_exhausted`` is called.
        """
        size = block_size(nbytes)
        reason = ""
        with self._lock:
            if self._freed:
                self._take_freed_locked()
            places = self._bins.get(size)
            if places and self._clock() < self._look_again and self._process == os.getpid():
                place = places.pop()  # ``_use_locked``, in line: most blocks come from here
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
                f"there is no shared memory for a tensor of {nbytes} bytes ({reason}); such "
                "tensors are sent inline, which is slower"
            )
        return block

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialized array in the arena.

        An ordinary one if it is tiny or memory is short.

        Its block is free again when the last view of it is collected.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        block = self.allocate(nbytes) if nbytes >= PAGE and not dtype.hasobject else None
        if block is None:
            return np.empty(shape, dtype)
        with self._lock:
            insort(self.lent_out, (block.address, weakref.ref(block)), key=_address_of)
        return block.array(shape, dtype)

    def find(self, address: int, nbytes: int) -> Block | None:
        """Return the block of ``empty`` in which all of these bytes lie; holding it keeps it."""
        with self._lock:
            i = bisect_right(self.lent_out, address, key=_address_of) - 1
            block = self.lent_out[i][1]() if i >= 0 else None
        if block is None or address + nbytes > block.address + block.size:
            return None
        return block

    def descriptor(self, region: int) -> int:
        """Return the descriptor of a region to pass on, valid while a block in it is held.

        Raises OSError after ``close``.
        """
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the arena is closed")
            return self._regions[region].owned.descriptor

    def abandon(self, regions: Iterable[int]) -> None:
        """Retire these regions' pages for good: a receiver may go on reading them.

        For calls whose lane broke before their answer came; to be called before their blocks
        are released. A region is dropped as soon as no block of it is in use; a process that has it
        mapped keeps it.
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
        """Return regions to the system that have had no block in use for that long."""
        with self._lock:
            self._take_freed_locked()
            dropped = self._drop_idle_locked(idle_seconds)
        self._tell(dropped)

    def close(self) -> None:
        """Hand out no more blocks, and forget its regions; blocks in use keep theirs mapped."""
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

    # -- all below: the caller holds the lock, but for `_tell` -----------------------------------

    def _allocate_locked(self, size: int) -> Block:
        """Raise OSError if there is no memory."""
        if places := self._bins.get(size):
            return self._use_locked(places.pop(), size)
        place = self._carve_locked(size)
        if place is None:
            self._merge_locked()  # blocks of other sizes, side by side, may make room
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
            raise OSError("a new region has no room")
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
