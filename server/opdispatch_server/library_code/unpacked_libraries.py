"""Uploaded libraries as files on disk, from which all interpreters of a machine import them.

Each is a folder that never changes: it is read-only, and named by the digest of the upload. A
process that uses it holds a shared lock on it; removing it requires an exclusive one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from opdispatch_server.library_code.library_archive import (
    choose_main,
    is_archive,
    module_name,
    open_archive,
    source_module,
)
from opdispatch_wire.errors import LibraryLoadError

DRAFT_PREFIX = ".draft-"
"""The prefix of folders being unpacked; a crash can leave one behind."""
CHUNK = 1024 * 1024
_FOLDER = re.compile(r"[^\s\"']*/unpacked/[0-9a-f]{64}(\.\w+)?/")


class UnpackedLibraries:
    """Unpacked uploads by digest, in one folder. Any process or thread may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def unpack(self, upload: Path, digest: str, filename: str) -> Path:
        """Return the folder with the content of ``upload``; unpack it if necessary.

        ``filename`` is its uploader's name for it. Raises LibraryLoadError if it cannot be
        unpacked, and OSError if the disk refuses; nothing is left behind then.
        """
        target = self.find(digest, filename)
        if target.is_dir():
            return target
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(dir=self.folder, prefix=DRAFT_PREFIX))
        try:
            if is_archive(filename):
                _unpack(upload, filename, draft)
            else:
                with upload.open("rb") as source:
                    _write(source.read, draft / f"{source_module(filename)}.py", executable=False)
            _make_read_only(draft)
            draft.rename(target)
        except OSError as error:
            if target.is_dir():  # another process was faster, and a folder cannot be replaced
                return target
            raise OSError(error.errno, error.strerror, str(self.folder)) from error
        finally:
            remove_folder(draft)
        return target

    def find(self, digest: str, filename: str) -> Path:
        """Return the folder for the upload of that digest and name, unpacked or not."""
        # The same source under two names makes two modules.
        suffix = "" if is_archive(filename) else f".{source_module(filename)}"
        return self.folder / f"{digest}{suffix}"

    def remove(
        self, keep: Callable[[str], bool] = lambda digest: False, *, dry_run: bool = False
    ) -> int:
        """Remove the folders that no process uses, except those of digests to ``keep``.

        Returns how many bytes that frees. With ``dry_run``, only counts them.
        """
        freed = 0
        for path in self._paths():
            if keep(path.name[:64]):
                continue
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                freed += folder_bytes(path)
                if not dry_run:
                    remove_folder(path)
            except BlockingIOError:
                continue  # an interpreter has imported it
            finally:
                os.close(descriptor)
        return freed

    def remove_drafts(self) -> None:
        """Remove the folders of processes that died while unpacking."""
        for path in self.folder.glob(f"{DRAFT_PREFIX}*"):
            remove_folder(path)

    def total_bytes(self) -> int:
        """Return the bytes on disk."""
        return sum(map(folder_bytes, self._paths()))

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"{'[0-9a-f]' * 64}*"))


class LibraryFolder:
    """One unpacked library that this process uses until ``close``."""

    def __init__(self, path: Path, filename: str, library: str) -> None:
        """Use the folder. Raises LibraryLoadError if it is missing, or has no module to import.

        ``filename`` is the uploader's name for the upload, ``library`` the library's name.
        """
        self.path = path
        self.label = filename
        folder = f"{path}{os.sep}"
        # Pairs of a path in texts and its replacement.
        self._shown = (
            (folder, f"{filename}/")
            if is_archive(filename)
            else (f"{folder}{source_module(filename)}.py", filename)
        )
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # While an error of this is handled, the descriptor stays open: if it was the last that
            # this process may have, a search for the cause finds none.
            self._unlock = weakref.finalize(self, os.close, lock)
            # A shared lock: it only waits for a removal in progress.
            fcntl.flock(lock, fcntl.LOCK_SH)
            modules = list(filter(None, map(module_name, self._files())))
        except OSError as error:
            raise LibraryLoadError(
                f"the files of {filename} cannot be read: {error.strerror}",
                hint="load the library again",
                path=str(path),
            ) from error
        self.top_levels = frozenset(name.partition(".")[0] for name in modules)
        try:
            self.main = choose_main(modules, filename, library)
        except BaseException:
            self.close()
            raise
        _IN_USE.add(self)

    def show_paths(self, text: str) -> str:
        """Replace the library's paths in a text by those that tracebacks show.

        These are "ops.py", or "ops.zip/pkg/blur.py", whatever the actual folder.
        """
        return text.replace(*self._shown)

    def owns(self, path: str) -> bool:
        """Return whether a file is one of the library's."""
        return path.startswith(f"{self.path}{os.sep}")

    def close(self) -> None:
        """Close the folder, so that others may remove it. Idempotent."""
        _IN_USE.discard(self)
        self._unlock()

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.path, onerror=_raise):
            relative = PurePosixPath(folder).relative_to(self.path)
            yield from (str(relative / name) for name in names)


def _raise(error: OSError) -> None:
    raise error


_IN_USE: set[LibraryFolder] = set()


def show_paths(text: str) -> str:
    """Replace the paths of all libraries in use in a text by those that tracebacks show."""
    for folder in tuple(_IN_USE):
        text = folder.show_paths(text)
    return text


def without_folders(text: str) -> str:
    """Replace the paths of unpacked libraries in a text by paths within the libraries.

    For processes that do not use the libraries themselves, for instance for the output of a crash.
    """
    return _FOLDER.sub("", text) if "/unpacked/" in text else text


def folder_bytes(path: Path) -> int:
    """Return the size of all files in a folder."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def remove_folder(path: Path) -> None:
    """Remove a read-only folder; do nothing if it does not exist."""
    for folder, _, _ in os.walk(path):
        with suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _unpack(upload: Path, filename: str, folder: Path) -> None:
    with open_archive(upload, filename) as (archive, members):
        for member in members:
            target = folder.joinpath(*PurePosixPath(member.filename).parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            executable = bool(member.external_attr >> 16 & stat.S_IXUSR)
            with archive.open(member) as source:
                try:
                    _write(source.read, target, executable=executable)
                except zipfile.BadZipFile as error:
                    raise LibraryLoadError(
                        f"{filename}: {member.filename[:200]!r} is damaged: {error}"
                    ) from error


def _write(read: Callable[[int], bytes], target: Path, *, executable: bool) -> None:
    with target.open("xb") as file:
        while chunk := read(CHUNK):
            file.write(chunk)
        file.flush()
        # A folder with its final name is complete, even after a loss of power.
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o555 if executable else 0o444)


def _make_read_only(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        os.chmod(path, 0o555)
