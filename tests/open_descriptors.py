"""Open descriptors of a test's own process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_descriptors() -> set[str]:
    """Return the targets of this process's descriptors, without those closed meanwhile."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(path))
    return found
