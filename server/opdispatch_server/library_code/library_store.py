"""Uploaded libraries on disk, each under the SHA-256 of its content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_wire.errors import LibraryLoadError

# Of what is being written; a crash can leave such a file behind.
DRAFT_PREFIX = ".draft-"


def digest_content(content: bytes) -> str:
    """The name that the store gives to ``content``: its SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


class LibraryStore:
    """Content by digest, in one folder.

    An entry appears whole or not at all, survives a crash right after ``put``, and is checked
    against its digest whenever it is read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes) -> str:
        """Keeps ``content``; returns its digest. Raises OSError if the disk refuses."""
        digest = digest_content(content)
        path = self._path(digest)
        if self._has(path, digest):
            self._sync_folder()  # whoever wrote it may have died before that
            return digest
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, draft = tempfile.mkstemp(dir=self._folder, prefix=DRAFT_PREFIX)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fault_point(FaultPoint.CONTENT_DRAFTED)
            Path(draft).rename(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        self._sync_folder()
        fault_point(FaultPoint.CONTENT_STORED)
        return digest

    def get(self, digest: str) -> bytes:
        """The content under ``digest``; raises LibraryLoadError if it is gone or damaged."""
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise LibraryLoadError(
                f"the stored content {digest[:12]} of the library cannot be read: {error.strerror}",
                hint="load the library again",
                path=str(path),
            ) from error
        if digest_content(content) != digest:
            path.unlink(missing_ok=True)  # so that loading it again stores it again
            raise LibraryLoadError(
                f"the stored content {digest[:12]} of the library is damaged",
                hint="load the library again",
                path=str(path),
            )
        return content

    def paths(self) -> list[Path]:
        """Where everything is that is kept: files that have their digest for a name."""
        return sorted(self._folder.glob("[0-9a-f]" * 64))

    def _has(self, path: Path, digest: str) -> bool:
        try:
            return digest_content(path.read_bytes()) == digest
        except OSError:
            return False

    def _path(self, digest: str) -> Path:
        return self._folder / digest

    def _sync_folder(self) -> None:
        # Without this the new name may be lost with the power, though the content is not.
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
