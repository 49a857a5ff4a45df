"""The receiver's side of shared memory: a peer's regions, and arrays that lie in them.

    lane      PeerMemory.add_region / drop_region      a descriptor came / is no longer needed
    callee    LentMemory                               arguments: only for the length of a call
    caller    received(...)                            results: until the last view is collected

Note [A view that outlives its call]
    When a call is over, the caller writes other data to the blocks of its arguments. A kernel
    that kept an argument, or a view of it, must not see that. Whether it did is known (see Note
    [A window knows when it is unused]); then, before the reply is sent, LentMemory.release puts a
    private copy under the addresses of what was kept, and later calls get a new mapping of
    the region. The kernel's view goes on showing what it showed; no other process notices.

    This costs nothing where nothing is kept. Where 10 MB are kept, it costs a copy into fresh
    pages (6 ms measured), which is what an argument that was copied beforehand would cost in
    every call. The other ways were worse: not reusing such blocks fills the caller's memory, does
    not help with an array of ``empty``, which the caller writes to when it likes, and lets a
    kernel that keeps things fill another process. So it is done only where the system has no
    room for the copy: ``release`` then names the extents, and tells when they are free.

Note [One mapping to read, one to write]
    Arguments that an operator does not write to come from a mapping without write permission:
    what NumPy does not stop, such as a pointer in C, the processor does. A call that writes to
    any argument gets all of them from a writable mapping instead, so that arguments that
    overlap in the caller overlap here, which NumPy looks for by address. No two such calls share
    a page of one mapping: putting a copy under a view of the first would take the other's writes
    from the caller. One that would share a page gets a new mapping.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.shared_memory.memory_region import MAX_REGION_BYTES, MappedRegion
from opdispatch_wire.shared_memory.shared_mapping import SharedMapping, Window, page_range
from opdispatch_wire.v1 import values_pb2

Array: TypeAlias = "np.ndarray[Any, Any]"
OnRelease = Callable[[int, int], None]
"""Told (region, offset) of memory that its owner may use again. Called by the collector, at any
moment and in any thread: it may append to a deque or wake an event loop, and take no lock."""

MAX_REGIONS = 1024

_NO_ROOM = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
_NO_MEMORY = "shared_memory"


def no_room_error(at: str, why: str) -> RefusedError:
    """Return the error for a call that must be sent again with its tensors inline."""
    return RefusedError(
        f"{at}: the shared memory cannot be used ({why}); the call never started",
        hint="send its tensors inline",
        **{_NO_MEMORY: "no"},
    )


def is_without_room(error: Exception) -> TypeGuard[RefusedError]:
    """Return whether it is a ``no_room_error``, which may have come over the wire."""
    return isinstance(error, RefusedError) and error.facts.get(_NO_MEMORY) == "no"


class _Result(Window):
    """The window over a result, which tells when its last view is gone."""

    __slots__ = ("_offset", "_on_release", "_region")

    def __init__(
        self, mapping: SharedMapping, message: values_pb2.SharedMemory, on_release: OnRelease
    ) -> None:
        # ``Window.__init__``, in line.
        self._owner = mapping
        self._region, self._offset, self._on_release = message.region, message.offset, on_release
        self._length = message.length
        self._data = (mapping.address + self._offset, not mapping.writable)

    def __del__(self) -> None:
        self._on_release(self._region, self._offset)


class _Mapping:
    """A mapping with what is lent from it; guarded by the peer's lock."""

    __slots__ = ("is_current", "kept", "lent", "shared")

    def __init__(self, shared: SharedMapping) -> None:
        self.shared = shared
        self.lent: list[_Loan] = []
        self.kept: list[tuple[int, int]] = []  # (offset, length): for as long as the mapping is
        self.is_current = True


class _Loan:
    """An extent that a call looks at."""

    __slots__ = ("call", "length", "mapping", "offset", "region", "window")

    def __init__(
        self, call: LentMemory, region: int, mapping: _Mapping, offset: int, length: int
    ) -> None:
        self.call = call
        self.region = region
        self.mapping = mapping
        self.offset = offset
        self.length = length
        self.window: weakref.ref[Window]

    def shares_page(self, offset: int, length: int) -> bool:
        start, stop = page_range(self.offset, self.length)
        other_start, other_stop = page_range(offset, length)
        return start < other_stop and other_start < stop


class _Region:
    """A peer's region and its current mappings; guarded by the peer's lock."""

    __slots__ = ("current", "mapped")

    def __init__(self, mapped: MappedRegion) -> None:
        self.mapped = mapped  # never lent from, so that it can always be mapped again
        self.current: dict[bool, _Mapping] = {}  # by whether it is to be written to


class PeerMemory:
    """The regions that one peer has passed, by the numbers that it gave them.

    Guards      ``_lock`` guards the regions, their mappings and what is lent from them.
    Invariants  I1  what is lent is lent from a mapping that was never detached from before;
                I2  no page of a writable mapping is lent to two calls at once;
                I3  a mapping that is not current and from which nothing is lent keeps no page
                    of the memfd, but for what could not be copied.
    """

    def __init__(
        self, *, max_regions: int = MAX_REGIONS, max_bytes: int = MAX_REGION_BYTES
    ) -> None:
        """Allow at most so many regions and bytes at a time, whatever the peer passes."""
        self._max_regions = max_regions
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._regions: dict[int, _Region] = {}
        self._refused: set[int] = set()

    def add_region(self, number: int, descriptor: int) -> None:
        """Map a region that the peer has passed; close the descriptor, also on failure.

        Raises WireError if it is no sealed memfd, the number is taken, or there are too many;
        and OSError if there is no room for it here.
        """
        at = f"region {number}"
        try:
            mapped = MappedRegion(descriptor, writable=True, max_bytes=self._max_bytes, at=at)
        except WireError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_ROOM:
                raise error.__cause__ from None
            raise
        with self._lock:
            if number in self._regions or number in self._refused:
                raise WireError(f"{at} was passed before; a number stands for one region only")
            if len(self._regions) >= self._max_regions:
                raise WireError(f"{at}: a peer may pass {self._max_regions} regions at a time")
            total = mapped.size + sum(r.mapped.size for r in self._regions.values())
            if total > self._max_bytes:
                raise WireError(f"{at}: a peer may pass regions of {self._max_bytes} bytes in all")
            self._regions[number] = _Region(mapped)

    def refuse_region(self, number: int) -> None:
        """Refuse calls that name this region, since it could not be added."""
        with self._lock:
            if len(self._refused) >= self._max_regions:
                raise WireError(f"region {number}: too many regions could not be mapped")
            self._refused.add(number)

    def drop_region(self, number: int) -> None:
        """Forget a region; arrays in it stay valid. Raises WireError if there is none."""
        with self._lock:
            if number in self._refused:
                self._refused.discard(number)
                return
            region = self._regions.pop(number, None)
            if region is None:
                raise WireError(f"region {number} cannot be dropped: the peer has not passed it")

    def close(self) -> None:
        """Forget all regions; arrays in them stay valid."""
        with self._lock:
            self._regions.clear()

    def __len__(self) -> int:
        return len(self._regions)

    def received(
        self,
        message: values_pb2.SharedMemory,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        on_release: OnRelease,
        at: str,
    ) -> Array:
        """Return a writable array over a result.

        ``on_release`` is called when its last view is gone.

        Raises WireError if the extent is not one of the peer's.
        """
        with self._lock:
            region = self._get_region_locked(message, dtype, at=at)
        return _Result(region.mapped.mapping, message, on_release).array(shape, dtype)

    def _get_region_locked(
        self, message: values_pb2.SharedMemory, dtype: np.dtype[Any], *, at: str
    ) -> _Region:
        region = self._regions.get(message.region)
        if region is None and message.region in self._refused:
            raise no_room_error(f"{at}.memory", "the region could not be mapped")
        if region is None:
            raise WireError(
                f"{at}.memory.region is {message.region}, which the peer has not passed"
            )
        offset = message.offset
        if offset + message.length > region.mapped.size:
            region.mapped.check_bounds(offset, message.length, at=f"{at}.memory")  # raises
        if offset % dtype.alignment:
            raise WireError(
                f"{at}.memory.offset is {offset}; {dtype} is aligned to {dtype.alignment} bytes"
            )
        return region

    def _take_back(self, loans: list[_Loan]) -> list[_Loan]:
        """Take back what was lent to a call. Returns what is kept and cannot be copied."""
        kept = [loan for loan in loans if loan.window() is not None]
        stuck: list[_Loan] = []
        if kept:
            with self._lock:
                for loan in kept:
                    loan.mapping.is_current = False  # I1
            stuck = [loan for loan in kept if not _detach(loan)]
        finished: set[_Mapping] = set()
        with self._lock:
            for loan in kept:
                loan.mapping.kept.append((loan.offset, loan.length))
            for loan in loans:
                mapping = loan.mapping
                mapping.lent.remove(loan)
                if not mapping.is_current and not mapping.lent:
                    finished.add(mapping)
        for mapping in finished:  # no other thread gets at it any more
            with contextlib.suppress(OSError):  # it then goes when its last view does
                mapping.shared.retire(mapping.kept)  # I3
        return stuck


class LentMemory:
    """Memory of a peer that one call reads.

    See Note [A view that outlives its call]. Not thread-safe.
    """

    __slots__ = ("_on_release", "_peer", "loans", "writes")

    def __init__(self, peer: PeerMemory, on_release: OnRelease) -> None:
        """``on_release`` is called later for each extent that ``release`` returns."""
        self._peer = peer
        self.writes = False
        """Whether the operator writes to any of them; decided before the first ``array``."""
        self._on_release = on_release
        self.loans: list[_Loan] = []

    def array(
        self,
        memory: values_pb2.SharedMemory,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        writable: bool,
        at: str,
    ) -> Array:
        """Return an array over the peer's bytes, valid until ``release``.

        Writable only if asked for, and in a call that writes. Raises WireError if the extent
        is not one of the peer's.
        """
        peer, writes, offset, length = self._peer, self.writes, memory.offset, memory.length
        with peer._lock:
            region = peer._get_region_locked(memory, dtype, at=at)
            mapping = region.current.get(writes)
            if mapping is not None and writes:  # I2
                for loan in mapping.lent:
                    if loan.call is not self and loan.shares_page(offset, length):
                        mapping.is_current = False
            if mapping is None or not mapping.is_current:
                try:
                    mapping = _Mapping(region.mapped.mapping.again(writable=writes))
                except OSError as exc:
                    raise no_room_error(f"{at}.memory", str(exc)) from exc
                region.current[writes] = mapping
            loan = _Loan(self, memory.region, mapping, offset, length)
            mapping.lent.append(loan)
        self.loans.append(loan)
        shared = mapping.shared
        address, writable = shared.address + offset, writable and shared.writable
        window = Window(shared, address, length, writable=writable)
        loan.window = weakref.ref(window)
        return window.array(shape, dtype)

    def release(self) -> list[values_pb2.SharedMemory]:
        """End the call; return the extents of arguments that are still in use.

        To be called before the caller may use its memory again. The returned extents, the caller
        must not: they are still read, and ``on_release`` is called when they no longer are. There
        are none, as long as there is memory.
        """
        loans, self.loans = self.loans, []
        still_used: list[values_pb2.SharedMemory] = []
        for loan in self._peer._take_back(loans) if loans else ():
            window = loan.window()
            if window is None:
                continue
            _tell_when_gone(window, self._on_release, loan.region, loan.offset)
            still_used.append(
                values_pb2.SharedMemory(region=loan.region, offset=loan.offset, length=loan.length)
            )
        return still_used


def _detach(loan: _Loan) -> bool:
    try:
        loan.mapping.shared.detach(loan.offset, loan.length)
    except OSError:
        return False
    return True


def _tell_when_gone(window: Window, on_release: OnRelease, region: int, offset: int) -> None:
    finalizer = weakref.finalize(window, on_release, region, offset)
    finalizer.atexit = False  # the peer sees this process go
