"""Memory that one process writes and the daemon reads, and that outlives the process.

It is a memfd of sealed size. The daemon opens it through the process's descriptor while the process
lives; the mapping stays valid when the process has ended, so nothing written is lost.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress


def make_memory(name: str, size: int) -> int:
    """Return the descriptor of a memfd of ``size`` bytes; 0 on systems without memfds."""
    if not hasattr(os, "memfd_create"):
        return 0
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def open_memory(pid: int, descriptor: int, size: int) -> mmap.mmap | None:
    """Map, for reading, the memory that a process has under that descriptor; None if impossible.

    It must be sealed: a process that could shrink it could crash its readers.
    """
    if not descriptor or not hasattr(fcntl, "F_GET_SEALS"):
        return None
    with suppress(OSError, ValueError, OverflowError):
        ours = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if fcntl.fcntl(ours, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return mmap.mmap(ours, size, prot=mmap.PROT_READ)
        finally:
            os.close(ours)
    return None
