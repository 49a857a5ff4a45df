"""Uploaded libraries as files on disk, where all interpreters of a machine import them from.

Each is a folder of its own that nothing changes any more: its files and folders can only be read,
and its name is the digest of the upload. A process that uses one holds a shared lock on it; one
that wants to remove it has to get an exclusive one first.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
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
"""Of what is being unpacked; a crash can leave such a folder behind."""
CHUNK = 1024 * 1024
_FOLDER = re.compile(r"[^\s\"']*/unpacked/[0-9a-f]{64}(\.\w+)?/")


class UnpackedLibraries:
    """Unpacked uploads by digest, in one folder. Any process or thread may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def unpack(self, upload: Path, digest: str, filename: str) -> Path:
        """Return the folder with what is in ``upload``, unpacked now if it is not there.

        ``filename`` is how its uploader calls it. Raises LibraryLoadError if it cannot be
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
            if target.is_dir():  # another process was faster, and a folder is not replaced
                return target
            raise OSError(error.errno, error.strerror, str(self.folder)) from error
        finally:
            remove_folder(draft)
        return target

    def find(self, digest: str, filename: str) -> Path:
        """Return where the upload of that digest and name is once it is unpacked."""
        # One source under two names is two modules.
        suffix = "" if is_archive(filename) else f".{source_module(filename)}"
        return self.folder / f"{digest}{suffix}"

    def remove(
        self, keep: Callable[[str], bool] = lambda digest: False, *, dry_run: bool = False
    ) -> int:
        """Remove the folders that no process uses, but those of digests to ``keep``.

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
        """Remove what processes have left that died while they unpacked something."""
        for path in self.folder.glob(f"{DRAFT_PREFIX}*"):
            remove_folder(path)

    def total_bytes(self) -> int:
        """Return how much there is on disk."""
        return sum(map(folder_bytes, self._paths()))

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"{'[0-9a-f]' * 64}*"))


class LibraryFolder:
    """One unpacked library that this process uses until ``close``."""

    def __init__(self, path: Path, filename: str, library: str) -> None:
        """Use the folder. Raises LibraryLoadError if it is not there, or has no module to import.

        ``filename`` is how the uploader calls the upload, ``library`` is the library's name.
        """
        self.path = path
        self.label = filename
        folder = f"{path}{os.sep}"
        # What stands in a text, and what is shown for it.
        self._shown = (
            (folder, f"{filename}/")
            if is_archive(filename)
            else (f"{folder}{source_module(filename)}.py", filename)
        )
        try:
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise LibraryLoadError(
                f"the files of {filename} cannot be read: {error.strerror}",
                hint="load the library again",
                path=str(path),
            ) from error
        try:
            # Shared: it only waits for a removal that is under way.
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            modules = list(filter(None, map(module_name, self._files())))
            self.top_levels = frozenset(name.partition(".")[0] for name in modules)
            self.main = choose_main(modules, filename, library)
        except BaseException:
            self.close()
            raise
        _IN_USE.add(self)

    def show_paths(self, text: str) -> str:
        """Return a text with the library's files as tracebacks show them.

        That is "ops.py", or "ops.zip/pkg/blur.py", for whatever folder they are in.
        """
        return text.replace(*self._shown)

    def owns(self, path: str) -> bool:
        """Return whether a file is one of the library's."""
        return path.startswith(f"{self.path}{os.sep}")

    def close(self) -> None:
        """Close the folder, so that others may remove it. Idempotent."""
        _IN_USE.discard(self)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.path):
            relative = PurePosixPath(folder).relative_to(self.path)
            yield from (str(relative / name) for name in names)


_IN_USE: set[LibraryFolder] = set()


def show_paths(text: str) -> str:
    """Return a text with the files of all libraries in use as tracebacks show them."""
    for folder in tuple(_IN_USE):
        text = folder.show_paths(text)
    return text


def without_folders(text: str) -> str:
    """Return a text with the files of unpacked libraries by their paths within the libraries.

    For other processes than those that use them, such as what a crash has printed.
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
    """Remove a folder that can only be read; none is no error."""
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
        # A folder that has its name is complete, also after a loss of power.
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o555 if executable else 0o444)


def _make_read_only(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        os.chmod(path, 0o555)
