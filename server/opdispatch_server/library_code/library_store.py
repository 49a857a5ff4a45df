"""Uploaded libraries on disk, each under the SHA-256 of its content, and their unpacked folders."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opdispatch_server.daemon_configuration import LIBRARY_BYTES_DEFAULT, LIBRARY_DISK_BYTES_DEFAULT
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.file_sync import sync_path
from opdispatch_server.library_code.digest import digest_content, digest_file, is_digest
from opdispatch_server.library_code.partial_file import PART_PREFIX, PartialFile, is_in_use
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries, folder_bytes
from opdispatch_wire.errors import JournalError, LibraryLoadError
from opdispatch_wire.library_content import CHUNK_BYTES

# The suffix of files being written; a crash can leave one behind.
DRAFT_PREFIX = ".draft-"


def _state_of(path: Path) -> tuple[int, int, int]:
    """Return a key that changes when a file is replaced or written to. Raises OSError."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class LibraryStore:
    """The uploads by digest, in one folder, and the folders that they are unpacked to.

    An upload appears atomically, survives a crash right after it was stored, and is checked against
    its digest before it is unpacked. ``_lock`` protects ``_loads`` and ``_unproven``;
    ``_counting``, which may be held during disk access, ``_used`` and ``_coming``. All methods
    except ``prove`` may block on the disk.
    """

    def __init__(
        self,
        folder: Path,
        *,
        upload_bytes: int = LIBRARY_BYTES_DEFAULT,
        disk_bytes: int = LIBRARY_DISK_BYTES_DEFAULT,
    ) -> None:
        """Use a folder. ``upload_bytes`` limits one upload, ``disk_bytes`` all of them."""
        self._folder = folder
        self.set_limits(upload_bytes, disk_bytes)
        self.unpacked = UnpackedLibraries(folder.parent / "unpacked")
        self._lock = threading.Lock()
        # Loads in progress, by digest; and uploads that no load has published yet.
        self._loads: Counter[str] = Counter()
        self._unproven: set[str] = set()
        # Uploads that this process has written or verified, with the state of their files: a later
        # write changes that.
        self._checked: dict[str, tuple[int, int, int]] = {}
        self._counting = threading.Lock()
        # The bytes on disk, or more; counted when first needed.
        self._used: int | None = None
        # The sizes of uploads being written, by digest: not in ``_used`` until they are complete.
        self._coming: dict[str, int] = {}

    def set_limits(self, upload_bytes: int, disk_bytes: int) -> None:
        """Set the limits for later uploads: for one, and for all on disk together."""
        self._upload_bytes = upload_bytes
        self._disk_bytes = disk_bytes

    # -- uploads ----------------------------------------------------------------------------------

    def put(self, content: bytes) -> str:
        """Store ``content``; return its digest. Raises LibraryLoadError and JournalError."""
        digest = digest_content(content)
        if self.has(digest) and digest_file(self._path(digest)) == digest:
            self._sync_folder()  # the process that wrote it may have died before its own sync
            return digest
        label = "the library"
        self._reserve(digest, len(content), label)
        try:
            with self._disk(label):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                descriptor, draft = tempfile.mkstemp(dir=self._folder, prefix=DRAFT_PREFIX)
                try:
                    with open(descriptor, "wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    self._name(Path(draft), digest)
                except BaseException:
                    Path(draft).unlink(missing_ok=True)
                    raise
        finally:
            self._end_reservation(digest)
        return digest

    def adopt(self, path: Path, digest: str) -> None:
        """Store a file known to have that digest, by moving it. Raises JournalError."""
        with self._disk("the library"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_path(path)
            self._name(path, digest)

    def has(self, digest: str) -> bool:
        """Return whether there is an upload of that digest."""
        return is_digest(digest) and self._path(digest).is_file()

    def begin(self, digest: str, size: int, label: str) -> PartialFile:
        """Open the received part of an upload, perhaps empty; ``close`` must follow.

        Waits if the upload is open elsewhere. Raises LibraryLoadError if it exceeds the limit, and
        JournalError if it cannot be stored.
        """
        self._reserve(digest, size, label)
        try:
            with self._disk(label):
                return PartialFile(self._folder, digest, size)
        except BaseException:
            self._end_reservation(digest)
            raise

    def append(self, part: PartialFile, chunk: bytes, label: str) -> None:
        """Write the next bytes of an upload.

        Raises LibraryLoadError and JournalError, and then nothing of the upload is left.
        """
        try:
            with self._disk(label):
                part.append(chunk, label)
        except BaseException:
            part.remove()
            raise

    def end(self, part: PartialFile, label: str) -> None:
        """Store a complete upload.

        Raises LibraryLoadError if it is not the announced file, and JournalError; then nothing of
        it is left.
        """
        try:
            part.check(label)
            with self._disk(label):
                part.sync()
                self._name(part.path, part.digest)
        except BaseException:
            part.remove()
            raise

    def close(self, part: PartialFile) -> None:
        """End an upload; the part of an incomplete one stays. Idempotent."""
        part.close()
        self._end_reservation(part.digest, part.received if part.path.exists() else 0)

    def get_path(self, digest: str) -> Path:
        """Return the upload's file; raise LibraryLoadError if it is missing or damaged."""
        path = self._path(digest)
        try:
            state = _state_of(path)
            if self._checked.get(digest) != state and digest_file(path) != digest:
                path.unlink(missing_ok=True)  # so that loading it again stores it again
                raise LibraryLoadError(
                    f"the stored content {digest[:12]} of the library is damaged",
                    hint="load the library again",
                    path=str(path),
                )
        except OSError as error:
            raise LibraryLoadError(
                f"the stored content {digest[:12]} of the library cannot be read: {error.strerror}",
                hint="load the library again",
                path=str(path),
            ) from error
        self._checked[digest] = state
        return path

    def unpack(self, digest: str, filename: str) -> Path:
        """Return the folder with an upload's content. Raises LibraryLoadError and JournalError."""
        upload = self.get_path(digest)
        folder = self.unpacked.find(digest, filename)
        if folder.is_dir():
            return folder
        with self._disk(filename):
            folder = self.unpacked.unpack(upload, digest, filename)
        self._count_more(folder_bytes(folder))
        return folder

    def read(self, digest: str, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield an upload's chunks, starting at ``offset``. Raises LibraryLoadError and OSError."""
        with self.get_path(digest).open("rb") as file:
            file.seek(offset)
            while chunk := file.read(chunk_bytes):
                yield chunk

    def paths(self) -> list[Path]:
        """Return the files of the uploads, which are named by their digests."""
        return sorted(self._folder.glob("[0-9a-f]" * 64))

    def remove_parts(self, *, dry_run: bool = False) -> int:
        """Remove the parts of broken-off uploads; return how many bytes that frees.

        With ``dry_run``, only counts them.
        """
        freed = 0
        for path in self._folder.glob(f"{PART_PREFIX}*"):
            if not is_in_use(path):
                with suppress(OSError):
                    size = path.stat().st_size
                    if not dry_run:
                        path.unlink()
                    freed += size
        return freed

    # -- loads ------------------------------------------------------------------------------------

    def begin_load(self, digest: str) -> None:
        """Keep an upload until ``end_load``."""
        with self._lock:
            self._loads[digest] += 1

    def end_load(self, digest: str, *, is_useless: bool) -> None:
        """End a load, and remove the upload if ``is_useless``.

        It is kept if a load of it was ever published (``prove``), or another is in progress.
        """
        with self._lock:
            self._loads[digest] -= 1
            if not self._loads[digest]:
                del self._loads[digest]
                if is_useless and digest in self._unproven:
                    self._discard(digest)

    def prove(self, digest: str) -> None:
        """Keep an upload from which a library has been loaded."""
        with self._lock:
            self._unproven.discard(digest)

    # -- inside -----------------------------------------------------------------------------------

    def _discard(self, digest: str) -> None:
        self._unproven.discard(digest)
        self._checked.pop(digest, None)
        with suppress(OSError):
            self._path(digest).unlink()
        self.unpacked.remove(lambda other: other != digest)

    def _name(self, draft: Path, digest: str) -> None:
        fault_point(FaultPoint.CONTENT_DRAFTED)
        if not self.has(digest):
            with self._lock:
                self._unproven.add(digest)
        draft.rename(self._path(digest))
        self._count_more(self._path(digest).stat().st_size)
        self._checked[digest] = _state_of(self._path(digest))
        self._sync_folder()
        fault_point(FaultPoint.CONTENT_STORED)

    def _reserve(self, digest: str, size: int, label: str) -> None:
        """Reserve disk space for an upload until ``_end_reservation``.

        Raises LibraryLoadError if it is too large, and JournalError if there is no space.
        """
        if size > self._upload_bytes:
            raise LibraryLoadError(
                f"{label} has {size} bytes; the limit is {self._upload_bytes}",
                hint="raise the limit with `opdispatch serve --max-library-bytes`",
            )
        with self._counting:
            coming = sum(self._coming.values())
            used = self._count_used() if self._used is None else self._used
            if used + coming + size > self._disk_bytes:
                self.unpacked.remove()
                self.remove_parts()
                used = self._count_used()
            self._used = used
            if used + coming + size > self._disk_bytes:
                raise JournalError(
                    f"{label} has {size} bytes, and the libraries on disk have {used + coming} "
                    f"already; the limit is {self._disk_bytes}",
                    hint="`opdispatch state prune` removes those that nothing needs; raise the "
                    "limit with `opdispatch serve --library-disk-bytes`",
                )
            self._coming[digest] = size

    def _end_reservation(self, digest: str, left: int = 0) -> None:
        """End a reservation; ``left`` bytes of an incomplete upload stay on disk."""
        with self._counting:
            if self._coming.pop(digest, None) is not None and self._used is not None:
                self._used += left

    def _count_more(self, size: int) -> None:
        with self._counting:
            if self._used is not None:
                self._used += size

    def _count_used(self) -> int:
        coming = {f"{PART_PREFIX}{digest}" for digest in self._coming}
        used = self.unpacked.total_bytes()
        for path in (*self.paths(), *self._folder.glob(f"{PART_PREFIX}*")):
            if path.name not in coming:
                with suppress(OSError):
                    used += path.stat().st_size
        return used

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):  # it would name another file
            raise LibraryLoadError(f"{digest[:64]!r} is not a SHA-256 digest in hexadecimal")
        return self._folder / digest

    @contextmanager
    def _disk(self, label: str) -> Iterator[None]:
        """Convert OSErrors of the block to JournalError."""
        try:
            yield
        except OSError as error:
            hint = "see the daemon's --state folder"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                hint = "`opdispatch state prune` removes libraries that nothing needs"
            raise JournalError(
                f"{label} cannot be stored: {error.strerror}", hint=hint, path=str(self._folder)
            ) from error

    def _sync_folder(self) -> None:
        # Without this, a loss of power may undo the new name, though not the content.
        sync_path(self._folder)
