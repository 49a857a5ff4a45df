"""The receiver's side of shared memory: a peer's regions, and arrays in them.

    lane      PeerMemory.add_region / drop_region      maps and forgets regions
    callee    LentMemory                               arguments: only during a call
    caller    received(...)                            results: until the last view is collected

Note [A view that outlives its call]
    After a call, the caller writes other data to the blocks of its arguments. A kernel that kept an
    argument, or a view of it, must not see that. Windows tell whether it did: see Note [A window
    knows when it is unused]. If so, LentMemory.release maps a private copy at the addresses of the
    kept arrays before the reply is sent, and later calls get a new mapping of the region. The
    kernel's view keeps its contents, and no other process notices.

    This costs nothing if nothing is kept. Keeping 10 MB costs a copy into new pages (6 ms
    measured), which copying arguments beforehand would cost in every call. Not reusing such blocks
    would be worse: it fills the caller's memory, so that a kernel could exhaust another process,
    and does not help with an array of ``empty``, which the caller may write to at any time. So that
    is done only if the system has no memory for the copy: ``release`` then returns the extents, and
    reports when they are free.

Note [One mapping to read, one to write]
    Arguments that an operator does not write to are in a mapping without write permission, so that
    the processor stops writes that NumPy cannot, such as those of C code. A call that writes to any
    argument has all of them in a writable mapping, so that arguments which overlap in the caller
    overlap here as well; NumPy detects that by address. No two such calls share a page of one
    mapping: mapping a copy for a view of the first would hide the other's writes from the caller. A
    call that would share a page gets a new mapping.
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
"""Called with (region, offset) of memory that its owner may reuse.

The garbage collector calls it, at any moment and in any thread. It may append to a deque or wake an
event loop, but must not take a lock.
"""

MAX_REGIONS = 1024

_NO_ROOM = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
_NO_MEMORY = "shared_memory"


def no_room_error(at: str, why: str) -> RefusedError:
    """Return the error for a call that must be sent again with its tensors inline."""
    return RefusedError(
        f"{at}: cannot use the shared memory ({why}); the call never started",
        hint="send its tensors inline",
        **{_NO_MEMORY: "no"},
    )


def is_without_room(error: Exception) -> TypeGuard[RefusedError]:
    """Return whether an error is a ``no_room_error``, received over the wire or not."""
    return isinstance(error, RefusedError) and error.facts.get(_NO_MEMORY) == "no"


class _Result(Window):
    """The window over a result, which calls ``on_release`` when its last view is gone."""

    __slots__ = ("_offset", "_on_release", "_region")

    def __init__(
        self, mapping: SharedMapping, message: values_pb2.SharedMemory, on_release: OnRelease
    ) -> None:
        # ``Window.__init__``, inlined.
        self._owner = mapping
        self._region, self._offset, self._on_release = message.region, message.offset, on_release
        self._length = message.length
        self._data = (mapping.address + self._offset, not mapping.writable)

    def __del__(self) -> None:
        self._on_release(self._region, self._offset)


class _Mapping:
    """A mapping, and the extents lent from it. Guarded by the peer's lock."""

    __slots__ = ("is_current", "kept", "lent", "shared")

    def __init__(self, shared: SharedMapping) -> None:
        self.shared = shared
        self.lent: list[_Loan] = []
        # (offset, length) of arrays that kernels kept, for the lifetime of the mapping.
        self.kept: list[tuple[int, int]] = []
        self.is_current = True


class _Loan:
    """An extent lent to one call."""

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
    """A peer's region and its current mappings. Guarded by the peer's lock."""

    __slots__ = ("current", "mapped")

    def __init__(self, mapped: MappedRegion) -> None:
        self.mapped = mapped  # nothing is lent from it, so that it can always be mapped again
        self.current: dict[bool, _Mapping] = {}  # by whether the mapping is writable


class PeerMemory:
    """The regions that one peer has passed, by the peer's numbers for them. Thread-safe.

    Guards      ``_lock`` guards the regions, their mappings and the extents lent from them.
    Invariants  I1  extents are lent only from mappings in which nothing was ever detached;
                I2  no page of a writable mapping is lent to two calls at once;
                I3  a mapping that is not current and has nothing lent keeps no pages of the
                    memfd, except those that could not be copied.
    """

    def __init__(
        self, *, max_regions: int = MAX_REGIONS, max_bytes: int = MAX_REGION_BYTES
    ) -> None:
        """Limit the number of regions, and their bytes in all, that the peer may pass at a time."""
        self._max_regions = max_regions
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._regions: dict[int, _Region] = {}
        self._refused: set[int] = set()

    def add_region(self, number: int, descriptor: int) -> None:
        """Map a region that the peer has passed; close the descriptor, also on failure.

        Raises WireError if it is not a sealed memfd, its number is in use, or a limit is exceeded,
        and OSError if this process cannot map it.
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
                raise WireError(f"{at} was passed before; expected a new number for each region")
            if len(self._regions) >= self._max_regions:
                raise WireError(f"{at} exceeds the limit of {self._max_regions} regions of a peer")
            total = mapped.size + sum(r.mapped.size for r in self._regions.values())
            if total > self._max_bytes:
                raise WireError(
                    f"{at} exceeds the limit of {self._max_bytes} bytes in all regions of a peer"
                )
            self._regions[number] = _Region(mapped)

    def refuse_region(self, number: int) -> None:
        """Refuse calls that name a region which could not be added."""
        with self._lock:
            if len(self._refused) >= self._max_regions:
                raise WireError(f"region {number}: too many regions could not be mapped")
            self._refused.add(number)

    def drop_region(self, number: int) -> None:
        """Forget a region; arrays in it stay valid. Raises WireError if it was not passed."""
        with self._lock:
            if number in self._refused:
                self._refused.discard(number)
                return
            region = self._regions.pop(number, None)
            if region is None:
                raise WireError(f"cannot drop region {number}, which the peer has not passed")

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

        ``on_release`` is called when its last view is gone. Raises WireError if the extent is
        not in the peer's regions.
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
        """Take back the extents lent to a call; return those kept that could not be copied."""
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
        for mapping in finished:  # outside the lock: no other thread can use it any more
            with contextlib.suppress(OSError):  # its pages are then freed with its last view
                mapping.shared.retire(mapping.kept)  # I3
        return stuck


class LentMemory:
    """The memory of a peer that one call uses. Not thread-safe.

    See Note [A view that outlives its call].
    """

    __slots__ = ("_on_release", "_peer", "loans", "writes")

    def __init__(self, peer: PeerMemory, on_release: OnRelease) -> None:
        """Lend ``peer``'s memory; call ``on_release`` for extents that ``release`` returns."""
        self._peer = peer
        self.writes = False
        """Whether the operator writes to any argument; must be set before the first ``array``."""
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
        """Return an array over the peer's bytes, which is valid until ``release``.

        It is writable only if requested and the call ``writes``. Raises WireError if the extent is
        not in the peer's regions, and a ``no_room_error`` if it cannot be mapped.
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

        Must be called before the reply, after which the caller reuses its memory. It must not reuse
        the returned extents until ``on_release`` is called for them. There are none unless memory
        is exhausted.
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
    finalizer.atexit = False  # the peer notices the end of this process anyway
