"""The files of a library, as one upload: a file on disk, or a folder as a zip archive.

At most one chunk is in memory at a time. A folder is archived anew, without writing to disk, each
time that it is read; equal folders give equal archives.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from opdispatch_wire.errors import LibraryLoadError

CHUNK_BYTES = 1024 * 1024
_MESSAGE_BYTES = 1024  # more than the rest of the message takes
# The oldest time that a zip archive can represent, so that equal folders give equal archives.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def upload_chunk_bytes(max_message_bytes: int) -> int:
    """Return how many bytes of a file one message carries."""
    return max(min(CHUNK_BYTES, max_message_bytes - _MESSAGE_BYTES), max_message_bytes // 2)


class LibraryContent(Protocol):
    """The content of a library to upload."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def sha256(self) -> str:
        """Its SHA-256, in hexadecimal."""

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Yield its bytes from an offset on. Raises LibraryLoadError."""


class FileContent:
    """The content of a file. Raises LibraryLoadError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size, self.sha256 = _measure(self.chunks())

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """See LibraryContent."""
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unreadable(str(self._path), error) from error


class FolderContent:
    """A package folder as a zip archive, with the package at its top level.

    Without hidden files and folders, and byte code. Nothing is compressed: weights would not get
    smaller, and the archive is the same on every machine. Raises LibraryLoadError if a file cannot
    be read, or its name is not UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.size, self.sha256 = _measure(self.chunks())

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """See LibraryContent."""
        for chunk in self._archive():
            if offset < len(chunk):
                yield chunk[offset:]
            offset = max(offset - len(chunk), 0)

    def _archive(self) -> Iterator[bytes]:
        sink = _Sink()
        try:
            with zipfile.ZipFile(cast(IO[bytes], sink), "w", zipfile.ZIP_STORED) as archive:
                for path in self._files():
                    with path.open("rb") as source:
                        entry = self._entry(path, os.fstat(source.fileno()))
                        with archive.open(entry, "w") as target:
                            while chunk := source.read(CHUNK_BYTES):
                                target.write(chunk)
                                yield sink.take()
            yield sink.take()
        except OSError as error:
            raise _unreadable(error.filename, error) from error
        except UnicodeEncodeError as error:
            raise LibraryLoadError(
                f"the package in {str(self._folder)!r} has a file whose name is not UTF-8: "
                f"{error.object!r}"
            ) from None
        # from zipfile: the file is larger than its entry can represent
        except RuntimeError as error:
            raise LibraryLoadError(
                f"a file in {str(self._folder)!r} changed while it was read: {error}"
            ) from error

    def _entry(self, path: Path, status: os.stat_result) -> zipfile.ZipInfo:
        name = path.relative_to(self._folder.parent).as_posix()
        entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
        entry.create_system = 3  # Unix, on every system
        entry.external_attr = (0o755 if status.st_mode & stat.S_IXUSR else 0o644) << 16
        entry.file_size = status.st_size  # determines whether it needs the format for large files
        return entry

    def _files(self) -> list[Path]:
        def belongs(path: Path) -> bool:
            parts = path.relative_to(self._folder).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            return not hidden and path.is_file()

        return sorted(filter(belongs, self._folder.rglob("*")))


class _Sink:
    """A file object to which zipfile writes, without seeking or reading."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def take(self) -> bytes:
        data = b"".join(self._written)
        self._written.clear()
        return data


def _measure(chunks: Iterable[bytes]) -> tuple[int, str]:
    """Return the total size and the SHA-256 of all chunks, which are read one by one."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _unreadable(path: object, error: OSError) -> LibraryLoadError:
    return LibraryLoadError(f"cannot read {path!r}: {error.strerror}")
