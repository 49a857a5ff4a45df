"""Memory that a process writes and the daemon reads, which outlives the process.

It is a memfd that keeps its size. The daemon opens it through the process's descriptor while that
lives; the mapping stays when the process has gone, so nothing that was written is lost with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress


def make_memory(name: str, size: int) -> int:
    """Return the descriptor of a memfd of ``size`` bytes; 0 where the system has none."""
    if not hasattr(os, "memfd_create"):
        return 0
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def open_memory(pid: int, descriptor: int, size: int) -> mmap.mmap | None:
    """Map what a process has under that descriptor, for reading; None if that cannot be.

    A process that could still shrink it would bring down its reader: it must be sealed.
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
