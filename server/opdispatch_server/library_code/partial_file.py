"""A file received in parts, verified by its size and SHA-256 when complete."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from opdispatch_wire.errors import LibraryLoadError

PART_PREFIX = ".part-"
"""The prefix of incomplete files, which can be resumed."""
_CHUNK = 1024 * 1024


def is_in_use(path: Path) -> bool:
    """Return whether an upload in progress is writing to the file ``path``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class PartialFile:
    """The part of a file received so far, on disk; further parts are appended.

    One process has it open at a time, and one thread at a time may use it. All methods may raise
    OSError.
    """

    def __init__(self, folder: Path, digest: str, size: int) -> None:
        """Open the existing part, perhaps none, of a file of ``size`` bytes.

        Waits while another process has it open. The existing part is read once, for its hash.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / f"{PART_PREFIX}{digest}"
        self.digest = digest
        self.size = size
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_size > size:
                os.ftruncate(self._descriptor, 0)
            self.received = 0
            self._hash = hashlib.sha256()
            while chunk := os.read(self._descriptor, _CHUNK):
                self._hash.update(chunk)
                self.received += len(chunk)
        except BaseException:
            self.close()
            raise

    def append(self, chunk: bytes, label: str) -> None:
        """Write the next bytes. Raises LibraryLoadError if the file exceeds its announced size.

        ``label`` is the file's name in messages.
        """
        if self.received + len(chunk) > self.size:
            raise LibraryLoadError(f"{label} has more than the announced {self.size} bytes")
        view = memoryview(chunk)
        while view:
            written = os.write(self._descriptor, view)
            self._hash.update(view[:written])
            self.received += written
            view = view[written:]

    def check(self, label: str) -> None:
        """Raise LibraryLoadError unless the file is complete and the announced one."""
        if self.received < self.size:
            raise LibraryLoadError(f"{label} has {self.received} bytes; {self.size} were announced")
        if self._hash.hexdigest() != self.digest:
            raise LibraryLoadError(
                f"{label} arrived with the SHA-256 {self._hash.hexdigest()}; expected "
                f"{self.digest}",
                hint="it was changed on the way, or while it was being sent",
            )

    def sync(self) -> None:
        """Sync the file to disk, to survive a loss of power."""
        os.fsync(self._descriptor)

    def remove(self) -> None:
        """Remove the part."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file, keeping the part for a later attempt. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
