"""Address ranges over the pages of a memfd, and arrays that lie in them.

What Python's ``mmap`` lacks is called in libc: a mapping that keeps no descriptor, a second
mapping of the same pages, and other pages under an address that is in use. Linux alone has
memfds; elsewhere ``is_supported`` is False and nothing else here may be called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import os
import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

PAGE = mmap.PAGESIZE


# <sys/mman.h>; Python names only some of them.
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MREMAP_MAYMOVE = 1
_MREMAP_FIXED = 2
_MADV_POPULATE_WRITE = 23
_FAILED = ctypes.c_void_p(-1).value


def page_range(offset: int, length: int) -> tuple[int, int]:
    """Return the first and last byte, the latter exclusive, of the pages that an extent touches."""
    return offset // PAGE * PAGE, -(-(offset + length) // PAGE) * PAGE


class Window:
    """Base of an array over foreign memory: alive for as long as any view of it is.

    See Note [A window knows when it is unused].
    """

    # Note [A window knows when it is unused]
    #   Every view of an array, by any library (slices, memoryviews, DLPack, torch.from_numpy),
    #   holds the array, and in the end the object that the memory is from. NumPy releases a
    #   memoryview's buffer at once, so that memoryview.release() succeeds while arrays look at
    #   it: a memoryview does not tell. A Window does, since no other code ever gets hold of it: a
    #   weak reference to it is dead exactly when the last view is gone.

    __slots__ = ("__array_interface__", "__weakref__", "_data", "_length", "_owner")

    def __init__(self, owner: object, address: int, length: int, *, writable: bool) -> None:
        self._owner = owner  # keeps the pages mapped
        self._length = length
        self._data = (address, not writable)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the elements from the window's first byte on, which must all fit in."""
        typestr = _typestr_of(dtype)
        if math.prod(shape) * dtype.itemsize > self._length or not typestr:
            return np.ndarray(shape, dtype, buffer=self.bytes())  # raises for too few bytes
        # So that NumPy makes it in one step, which takes a fourth of the time.
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": shape,
            "data": self._data,
        }
        return np.asarray(self)

    def bytes(self) -> Array:
        """Return all bytes."""
        return self.array((self._length,), np.dtype(np.uint8))


@functools.lru_cache(256)
def _typestr_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype in the array interface; empty for one that has none there."""
    return dtype.str if np.dtype(dtype.str) == dtype else ""


class SharedMapping:
    """One mapping of all of a memfd; unmapped when it and the last window over it are collected.

    Keeps no descriptor. ``address`` stays the same and the range stays ours all that time.
    """

    __slots__ = ("__weakref__", "_range", "address", "contents", "size", "writable")

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Raise OSError if there is no room, or the descriptor does not allow for it."""
        self._reserve(size, writable=writable)
        self._map(descriptor, mmap.MAP_SHARED)

    def _reserve(self, size: int, *, writable: bool) -> None:
        # An anonymous mmap owns the range of addresses and gives it back when collected. It is
        # read-only, which costs no memory; what is mapped over it need not be.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._range = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
        self.address: int = np.frombuffer(self._range, np.uint8).__array_interface__["data"][0]
        self.size = size
        self.writable = writable
        # Over the range, not over this object, which has it.
        window = Window(self._range, self.address, size, writable=writable)
        self.contents: Array = window.bytes()
        """All bytes. No Window tells when views of them are unused."""

    def _map(self, descriptor: int, flags: int) -> None:
        _call("mmap", self.address, self.size, self._protection, flags | _MAP_FIXED, descriptor, 0)

    @property
    def _protection(self) -> int:
        return mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)

    def window(self, offset: int, length: int, *, writable: bool) -> Window:
        """Return a window over that extent, which must lie within.

        Writable only if the mapping is.
        """
        return Window(self, self.address + offset, length, writable=writable and self.writable)

    def again(self, *, writable: bool) -> SharedMapping:
        """Return another mapping of the same memfd. Raises OSError.

        Only while all of this one is as it was made: nothing detached, nothing retired.
        """
        other = SharedMapping.__new__(SharedMapping)
        other._reserve(self.size, writable=writable)
        # An old size of 0 asks for a copy of a shared mapping rather than for its move.
        _remap(self.address, 0, self.size, to=other.address)
        if writable != self.writable:
            _call("mprotect", other.address, other.size, other._protection)
        return other

    def detach(self, offset: int, length: int) -> None:
        """Put a private copy of the extent's pages in their place. Raises OSError.

        Views of them show no difference, and no later change of the memfd. The copy
        takes the place of the pages in one step; what other threads write to them meanwhile
        may be lost.
        """
        start, stop = page_range(offset, length)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        copy = _call("mmap", None, stop - start, protection, flags, -1, 0)
        try:
            source = Window(self, self.address + start, stop - start, writable=False)
            target = Window(self, copy, stop - start, writable=True)
            np.copyto(target.bytes(), source.bytes())  # others may run meanwhile
            if not self.writable:
                _call("mprotect", copy, stop - start, self._protection)
            _remap(copy, stop - start, stop - start, to=self.address + start)
        except OSError:
            _call("munmap", copy, stop - start)
            raise

    def retire(self, keep: Iterable[tuple[int, int]]) -> None:
        """Free the memfd's pages, except for those of these (offset, length)s.

        The others must not be read again. Raises OSError.
        """
        place = 0
        for start, stop in sorted(page_range(*extent) for extent in keep):
            self._blank(place, start)
            place = max(place, stop)
        self._blank(place, -(-self.size // PAGE) * PAGE)

    def _blank(self, start: int, stop: int) -> None:
        # The addresses must stay ours: unmapping them would let others in, whom the collected
        # mmap would then unmap.
        if start < stop:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _call("mmap", self.address + start, stop - start, _PROT_NONE, flags, -1, 0)

    def populate(self, offset: int, length: int) -> None:
        """Map the extent's pages for writing now rather than at the first touch, if that works."""
        start, stop = page_range(offset, length)
        with contextlib.suppress(OSError):  # before Linux 5.14 the first touch does it
            _call("madvise", self.address + start, stop - start, _MADV_POPULATE_WRITE)


@functools.cache
def is_supported() -> bool:
    """Return whether this platform has memfds, and every trick of this module works on it."""
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return False
    descriptor = -1
    try:
        descriptor = os.memfd_create("opdispatch-probe", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, 2 * PAGE)
        mapping = SharedMapping(descriptor, 2 * PAGE, writable=True)
        other = mapping.again(writable=False)
        seen = other.window(0, 2 * PAGE, writable=False).bytes()
        written = mapping.window(0, 2 * PAGE, writable=True).bytes()
        written[:] = 1
        other.detach(0, 1)
        written[:] = 2
        return bool(seen[0] == 1 and seen[PAGE] == 2)
    except OSError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    word, number, pointer = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
    libc.mmap.argtypes = (pointer, word, number, number, number, ctypes.c_long)
    libc.mremap.argtypes = (pointer, word, word, number, pointer)
    libc.munmap.argtypes = (pointer, word)
    libc.mprotect.argtypes = libc.madvise.argtypes = (pointer, word, number)
    libc.mmap.restype = libc.mremap.restype = pointer
    return libc


def _call(name: str, *args: int | None) -> int:
    """Call a function of libc and return its result.

    Raises OSError, with its errno, if it fails.
    """
    result: int = getattr(_libc(), name)(*args) or 0
    if result in (-1, _FAILED):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def _remap(address: int, old: int, new: int, *, to: int) -> None:
    _call("mremap", address, old, new, _MREMAP_MAYMOVE | _MREMAP_FIXED, to)
