"""The memory of a process: measuring it, and returning free memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


def find_memory(pid: int) -> int | None:
    """Return how many bytes the end of a process would free; None if it is gone or invisible.

    It is the proportional set size: pages that several processes share count in parts. Where the
    kernel does not report that, it is the resident set size.
    """
    for name, pattern in (("smaps_rollup", _PSS), ("status", _RSS)):
        with contextlib.suppress(OSError):
            if found := pattern.search(Path(f"/proc/{pid}/{name}").read_text()):
                return int(found[1]) * 1024
    return None


def trim_memory() -> None:
    """Collect garbage, and return free memory of this process to the operating system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)
