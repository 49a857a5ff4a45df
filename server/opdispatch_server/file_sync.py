"""Files that survive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk, to survive a loss of power.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync a folder and the files in it. Raises OSError."""
    for path in folder.iterdir():
        sync_path(path)
    sync_path(folder)
