"""An uploaded library before it is unpacked: a Python source file or a zip archive, on disk.

Nothing is executed or written here, and no file is read completely except the source of the module
to import, whose size is limited.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath
from typing import IO, cast

from opdispatch_server.library_code.archive_members import list_members
from opdispatch_wire.errors import LibraryLoadError

MAIN_SOURCE_BYTES_LIMIT = 4 * 1024**2
"""Compiling source takes a hundred times its size in memory."""
DIRECTORY_BYTES_LIMIT = 16 * 1024**2
"""The limit on an archive's list of members, which is read as a whole."""


def is_archive(filename: str) -> bool:
    """Return whether a file of that name is a zip archive; otherwise it is Python source.

    Raises LibraryLoadError if it is neither.
    """
    match PurePosixPath(filename).suffix.lower():
        case ".py":
            return False
        case ".zip":
            return True
        case suffix:
            raise LibraryLoadError(
                f"the file {filename!r} ends in {suffix!r}; expected a Python source file "
                "(.py) or a zip archive of modules (.zip)"
            )


def source_module(filename: str) -> str:
    """Return the name of the module that a single source file is imported as."""
    stem = re.sub(r"\W", "_", PurePosixPath(filename).stem)
    # On its own, a package's file is a module, too; and no name begins with a digit.
    return f"_{stem}" if stem == "__init__" or not stem.isidentifier() else stem


def read_main_source(path: Path, filename: str, library: str) -> bytes:
    """Return the source of the module to import from the upload ``path``.

    ``filename`` is its uploader's name for it. Raises LibraryLoadError if it is neither a Python
    source file nor a zip archive of modules, if it is unacceptable, and if it has no module to
    import, or one that is too long.
    """
    if not is_archive(filename):
        _check_main_size(path.stat().st_size, filename)
        return path.read_bytes()
    with open_archive(path, filename) as (archive, members):
        names = {name: m for m in members if (name := module_name(m.filename))}
        main = choose_main(names, filename, library)
        member = names.get(main)
        if member is None or not member.filename.endswith(".py"):
            return b""
        _check_main_size(member.file_size, f"{filename}/{member.filename}")
        return archive.read(member)


@contextmanager
def open_archive(
    path: Path, filename: str
) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """Open a zip archive and list its files, all checked; raise LibraryLoadError if damaged."""
    try:
        with (
            path.open("rb", buffering=0) as file,
            zipfile.ZipFile(cast(IO[bytes], _Bounded(file))) as archive,
        ):
            yield archive, list_members(archive, path.stat().st_size, filename)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise LibraryLoadError(f"{filename} is not a zip archive we can read: {error}") from error
    except (LibraryLoadError, OSError):
        raise
    except Exception as error:  # a damaged stream raises the decompressor's own error
        raise LibraryLoadError(f"{filename} is damaged: {error}") from error


def module_name(path: str) -> str:
    """Return the dotted name of the module in the file ``path``; "" if it is not a module."""
    pure = PurePosixPath(path)
    suffix = next((each for each in (".py", *EXTENSION_SUFFIXES) if pure.name.endswith(each)), "")
    parts = [*pure.parent.parts, pure.name.removesuffix(suffix)]
    if not suffix or not all(part.isidentifier() for part in parts):
        return ""
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def choose_main(modules: Iterable[str], filename: str, library: str) -> str:
    """Return the module to import. Raises LibraryLoadError if there is none."""
    top = sorted({name.partition(".")[0] for name in modules} - {""})
    if library in top:
        return library
    if len(top) == 1:
        return top[0]
    if not top:
        raise LibraryLoadError(f"{filename} contains no Python module at its top level")
    raise LibraryLoadError(
        f"{filename} has {len(top)} modules at its top level ({', '.join(top)[:400]}) and none of "
        f"them is named {library!r}, like the library",
        hint="name the library like the module to import",
    )


def _check_main_size(size: int, label: str) -> None:
    if size > MAIN_SOURCE_BYTES_LIMIT:
        raise LibraryLoadError(
            f"{label} is the module to import and has {size} bytes; the limit is "
            f"{MAIN_SOURCE_BYTES_LIMIT}",
            hint="put data into files next to it",
        )


class _Bounded:
    """A file for zipfile that refuses reads longer than a list of members may be."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_BYTES_LIMIT:
            raise LibraryLoadError(
                f"the list of members in the archive has {size} bytes; the limit is "
                f"{DIRECTORY_BYTES_LIMIT}"
            )
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True
