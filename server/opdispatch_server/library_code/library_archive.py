"""An uploaded library taken apart: the Python modules in a source file or a zip archive.

Nothing is executed here and nothing is written to disk.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import NamedTuple

from opdispatch_server.library_code.archive_members import list_members
from opdispatch_wire.errors import LibraryLoadError


class ArchiveModule(NamedTuple):
    """One module. ``path`` is what tracebacks show: "ops.py", or "ops.zip/pkg/blur.py"."""

    path: str
    source: bytes
    is_package: bool


class LibraryArchive(NamedTuple):
    """The modules of an upload by dotted name, and which of them to import."""

    main: str
    modules: dict[str, ArchiveModule]
    # All files, by the path that tracebacks show; for modules that read their own data.
    files: dict[str, bytes]

    @property
    def top_levels(self) -> frozenset[str]:
        """The first parts of the dotted names."""
        return frozenset(name.partition(".")[0] for name in self.modules)


def read_archive(content: bytes, filename: str, library: str) -> LibraryArchive:
    """The modules in ``content``, of the library of that name.

    The suffix of ``filename`` says what the content is. Raises LibraryLoadError if it is
    neither a Python source file nor a zip archive of modules, or has no module to import.
    """
    match PurePosixPath(filename).suffix.lower():
        case ".py":
            return _read_source(content, filename)
        case ".zip":
            return _read_zip(content, filename, library)
        case suffix:
            raise LibraryLoadError(
                f"the file {filename!r} ends in {suffix!r}; expected a Python source file "
                "(.py) or a zip archive of modules (.zip)"
            )


def read_main_source(content: bytes, filename: str, library: str) -> bytes:
    """The source of the module that is imported; nothing else is unpacked.

    Raises as ``read_archive`` does.
    """
    if PurePosixPath(filename).suffix.lower() != ".zip":
        return read_archive(content, filename, library).files[filename]
    with _opened(content, filename) as archive:
        members = {m.filename: m for m in list_members(archive, len(content), filename)}
        names = {name: path for path in members if (name := _module_name(path))}
        main = _choose_main(_with_folders(names), filename, library)
        return archive.read(names[main]) if main in names else b""


def _with_folders(names: Iterable[str]) -> set[str]:
    """The names, and those above them: folders without an __init__.py are packages too."""
    found = set(names)
    for name in names:
        while name := name.rpartition(".")[0]:
            found.add(name)
    return found


def _read_source(content: bytes, filename: str) -> LibraryArchive:
    name = re.sub(r"\W", "_", PurePosixPath(filename).stem)
    module = ArchiveModule(path=filename, source=content, is_package=False)
    return LibraryArchive(main=name, modules={name: module}, files={filename: content})


def _read_zip(content: bytes, filename: str, library: str) -> LibraryArchive:
    files = _unpack(content, filename)
    modules: dict[str, ArchiveModule] = {}
    for path, data in files.items():
        if name := _module_name(path):
            package = path.endswith("__init__.py")
            modules[name] = ArchiveModule(f"{filename}/{path}", data, package)
    for name in _with_folders(modules):
        folder = f"{filename}/{name.replace('.', '/')}/__init__.py"
        modules.setdefault(name, ArchiveModule(folder, b"", is_package=True))
    named = {f"{filename}/{path}": data for path, data in files.items()}
    return LibraryArchive(_choose_main(modules, filename, library), modules, named)


def _unpack(content: bytes, filename: str) -> dict[str, bytes]:
    with _opened(content, filename) as archive:
        members = list_members(archive, len(content), filename)
        return {member.filename: archive.read(member) for member in members}


@contextmanager
def _opened(content: bytes, filename: str) -> Iterator[zipfile.ZipFile]:
    """The archive, open; within it, what is wrong with it is a LibraryLoadError."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise LibraryLoadError(f"{filename} is not a zip archive we can read: {error}") from error
    except LibraryLoadError:
        raise
    except Exception as error:  # a damaged stream surfaces as the decompressor's own error
        raise LibraryLoadError(f"{filename} is damaged: {error}") from error


def _module_name(path: str) -> str:
    """The dotted name of the module in the file ``path``, or "" if it is no module."""
    pure = PurePosixPath(path)
    if pure.suffix != ".py":
        return ""
    parts = [*pure.parent.parts, pure.stem]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


def _choose_main(modules: Iterable[str], filename: str, library: str) -> str:
    top = sorted(name for name in modules if "." not in name)
    if library in top:
        return library
    if len(top) == 1:
        return top[0]
    if not top:
        raise LibraryLoadError(f"{filename} contains no Python module at its top level")
    raise LibraryLoadError(
        f"{filename} has {len(top)} modules at its top level ({', '.join(top)}) and none of "
        f"them is named {library!r}, like the library",
        hint="name the library like the module to import",
    )
