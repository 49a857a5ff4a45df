"""Map the pages of a memfd to addresses, and make arrays over them.

Calls libc for what Python's ``mmap`` lacks: a mapping without a descriptor, a second mapping of the
same pages, and replacing the pages at an address in use. Only Linux has memfds; elsewhere
``is_supported`` returns False, and nothing else here may be called.
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
    """Return start and stop of the pages that an extent touches, in bytes; stop is exclusive."""
    return offset // PAGE * PAGE, -(-(offset + length) // PAGE) * PAGE


class Window:
    """The base of an array over foreign memory, which lives as long as any view of it.

    See Note [A window knows when it is unused].
    """

    # Note [A window knows when it is unused]
    #   Every view of an array, by any library (slices, memoryviews, DLPack, torch.from_numpy),
    #   refers to the array, and so to the object that provides the memory. A memoryview as that
    #   object does not tell when it is unused: NumPy releases its buffer at once, so that
    #   memoryview.release() succeeds while arrays use the memory. A Window does, because nothing
    #   else refers to it: a weak reference to it dies exactly when the last view is gone.

    __slots__ = ("__array_interface__", "__weakref__", "_data", "_length", "_owner")

    def __init__(self, owner: object, address: int, length: int, *, writable: bool) -> None:
        self._owner = owner  # keeps the pages mapped
        self._length = length
        self._data = (address, not writable)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array that begins at the window's first byte and must fit in it."""
        typestr = _typestr_of(dtype)
        if math.prod(shape) * dtype.itemsize > self._length or not typestr:
            return np.ndarray(shape, dtype, buffer=self.bytes())  # raises for too few bytes
        # NumPy then makes the array in one step, in a fourth of the time.
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": shape,
            "data": self._data,
        }
        return np.asarray(self)

    def bytes(self) -> Array:
        """Return all bytes of the window as an array of uint8."""
        return self.array((self._length,), np.dtype(np.uint8))


@functools.lru_cache(256)
def _typestr_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype in the array interface; empty if it has none."""
    return dtype.str if np.dtype(dtype.str) == dtype else ""


class SharedMapping:
    """One mapping of a whole memfd, unmapped when it and its last window are collected.

    Keeps no descriptor. The address range stays reserved all that time.
    """

    __slots__ = ("__weakref__", "_range", "address", "contents", "size", "writable")

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Map ``size`` bytes. Raises OSError if memory or the descriptor does not allow it."""
        self._reserve(size, writable=writable)
        self._map(descriptor, mmap.MAP_SHARED)

    def _reserve(self, size: int, *, writable: bool) -> None:
        # An anonymous mmap reserves the address range, and frees it when collected. It is
        # read-only, which costs no memory; the pages mapped over it may be writable.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._range = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
        self.address: int = np.frombuffer(self._range, np.uint8).__array_interface__["data"][0]
        self.size = size
        self.writable = writable
        # Owned by the range, not by this object: that would be a cycle.
        window = Window(self._range, self.address, size, writable=writable)
        self.contents: Array = window.bytes()
        """All bytes, for internal use: views of them are not tracked by a Window."""

    def _map(self, descriptor: int, flags: int) -> None:
        _call("mmap", self.address, self.size, self._protection, flags | _MAP_FIXED, descriptor, 0)

    @property
    def _protection(self) -> int:
        return mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)

    def window(self, offset: int, length: int, *, writable: bool) -> Window:
        """Return a window over an extent, which must be within the mapping.

        It is writable only if the mapping is, too.
        """
        return Window(self, self.address + offset, length, writable=writable and self.writable)

    def again(self, *, writable: bool) -> SharedMapping:
        """Return another mapping of the same memfd. Raises OSError.

        Must not be called after ``detach`` or ``retire``.
        """
        other = SharedMapping.__new__(SharedMapping)
        other._reserve(self.size, writable=writable)
        # With an old size of 0, mremap duplicates a shared mapping instead of moving it.
        _remap(self.address, 0, self.size, to=other.address)
        if writable != self.writable:
            _call("mprotect", other.address, other.size, other._protection)
        return other

    def detach(self, offset: int, length: int) -> None:
        """Replace the pages of an extent by a private copy. Raises OSError.

        Views of them keep their contents, and do not show later changes of the memfd. The pages are
        replaced atomically, but writes of other threads during the copy may be lost.
        """
        start, stop = page_range(offset, length)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        copy = _call("mmap", None, stop - start, protection, flags, -1, 0)
        try:
            source = Window(self, self.address + start, stop - start, writable=False)
            target = Window(self, copy, stop - start, writable=True)
            np.copyto(target.bytes(), source.bytes())  # releases the GIL
            if not self.writable:
                _call("mprotect", copy, stop - start, self._protection)
            _remap(copy, stop - start, stop - start, to=self.address + start)
        except OSError:
            _call("munmap", copy, stop - start)
            raise

    def retire(self, keep: Iterable[tuple[int, int]]) -> None:
        """Unmap the memfd's pages, except those of the extents (offset, length) in ``keep``.

        The other pages must not be accessed again. Raises OSError.
        """
        place = 0
        for start, stop in sorted(page_range(*extent) for extent in keep):
            self._blank(place, start)
            place = max(place, stop)
        self._blank(place, -(-self.size // PAGE) * PAGE)

    def _blank(self, start: int, stop: int) -> None:
        # The addresses must stay reserved: if they were unmapped, other mappings could get them,
        # which the mmap object would unmap when it is collected.
        if start < stop:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _call("mmap", self.address + start, stop - start, _PROT_NONE, flags, -1, 0)

    def populate(self, offset: int, length: int) -> None:
        """Map the pages of an extent for writing now, not at the first access, if possible."""
        start, stop = page_range(offset, length)
        with contextlib.suppress(OSError):  # before Linux 5.14, the first access maps them
            _call("madvise", self.address + start, stop - start, _MADV_POPULATE_WRITE)


@functools.cache
def is_supported() -> bool:
    """Return whether this platform has memfds, and supports all operations of this module."""
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
    """Call a function of libc and return its result. Raises OSError with its errno."""
    result: int = getattr(_libc(), name)(*args) or 0
    if result in (-1, _FAILED):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def _remap(address: int, old: int, new: int, *, to: int) -> None:
    _call("mremap", address, old, new, _MREMAP_MAYMOVE | _MREMAP_FIXED, to)
