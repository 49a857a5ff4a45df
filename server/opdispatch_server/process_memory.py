"""How much memory a process has, and how it gives some back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from pathlib import Path

_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


def find_memory(pid: int) -> int | None:
    """Return the bytes that would be free if the process ended; None if it is gone or out of sight.

    Its proportional set size: pages that several processes share count in parts. Where the
    kernel does not tell that, its resident set size.
    """
    for name, pattern in (("smaps_rollup", _PSS), ("status", _RSS)):
        with contextlib.suppress(OSError):
            if found := pattern.search(Path(f"/proc/{pid}/{name}").read_text()):
                return int(found[1]) * 1024
    return None


def trim_memory() -> None:
    """Collect garbage, and return free memory of this process to the operating system."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
