"""Lock files: the lock on one says which process owns the files next to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def open_lock_file(path: Path, *, create: bool = True) -> int:
    """Return a descriptor of the lock file at ``path``, which interpreters do not inherit.

    A symbolic link is refused: in a folder that others can write to, it would make the daemon
    create or lock a file of their choice. Raises OSError.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, f"{path.name} is a symbolic link", str(path)) from None
