"""What to load, as the request that uploads it.

A library is one ``.py`` file, a ``.zip`` archive of modules, a folder that is a package (sent
as such an archive), or the dotted name of a module that the interpreter can import. Files are
read here: the client's disk need not be the daemon's.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import zipfile
from pathlib import Path

from opdispatch.schema_default import check_device
from opdispatch_wire.errors import LibraryLoadError, WireError
from opdispatch_wire.requirements_file import Requirements, read_requirements
from opdispatch_wire.v1 import registry_pb2

_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SCRIPT_METADATA = re.compile(rb"^# /// script\s*$", re.MULTILINE)
_SUFFIXES = (".py", ".zip")
# The oldest time that a zip archive can carry: equal folders give equal archives.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def load_request(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    interpreter: str | None = None,
    interpreters: int | None = None,
    on: str | None = None,
    requirements: Requirements | None = None,
    python: str | os.PathLike[str] | None = None,
    isolated: bool = False,
) -> registry_pb2.LoadLibraryRequest:
    """The request that loads `source`, `on` an interpreter or a kind of device.

    A string without a path separator that does not end in ``.py`` or ``.zip`` is a module
    name, unless it has a dot and is the name of a file. Raises LibraryLoadError if it is none
    either, or if the file is missing, cannot be read, or is of another kind; WireError for fewer
    interpreters than one.
    """
    if interpreters is not None and interpreters < 1:
        raise WireError(f"interpreters is {interpreters}; expected 1 or more")
    device = on if on is not None and _is_device(on) else ""
    request = registry_pb2.LoadLibraryRequest(
        name=name or "",
        interpreter=interpreter or ("" if device else on) or "",
        interpreters=interpreters or 0,
        device=device,
        isolated=isolated,
    )
    if requirements is not None:
        request.environment.requirements.extend(read_requirements(requirements))
    if python is not None:
        request.environment.python = _absolute_path(python)
    if isinstance(source, str) and not _looks_like_path(source):
        if not _MODULE_NAME.fullmatch(source):
            raise LibraryLoadError(
                f"{source!r} is neither a .py or .zip file nor the dotted name of a module"
            )
        request.module = source
        return request
    path = Path(source).expanduser()
    if path.is_dir():
        request.content = _archive_package(path)
        request.filename = f"{_as_text(path.resolve().name)}.zip"
    else:
        request.content = _read_file(path)
        request.filename = _as_text(path.name)
    request.sha256 = hashlib.sha256(request.content).hexdigest()
    return request


def _is_device(on: str) -> bool:
    try:
        check_device(on)
    except ValueError:
        return False
    return True


def needs_environment(request: registry_pb2.LoadLibraryRequest) -> bool:
    """Whether the daemon may have to make an environment, or start an interpreter, for it."""
    return (
        request.isolated
        or request.HasField("environment")
        or _SCRIPT_METADATA.search(request.content) is not None
        or request.filename.endswith(".zip")  # it may be inside
    )


def _absolute_path(python: str | os.PathLike[str]) -> str:
    text = os.fspath(python)
    found = text if os.sep in text else shutil.which(text) or text
    # Not resolved: the Python of a virtual environment is a link.
    return str(Path(found).expanduser().absolute())


def _as_text(filename: str) -> str:
    """A file's name as it can be sent, though its bytes may be no UTF-8."""
    return os.fsencode(filename).decode(errors="replace")


def _looks_like_path(text: str) -> bool:
    separators = tuple(filter(None, (os.sep, os.altsep)))
    if text.lower().endswith(_SUFFIXES) or any(separator in text for separator in separators):
        return True
    return "." in text and os.path.isfile(text)  # `edges.txt` is no module `txt` in `edges`


def _read_file(path: Path) -> bytes:
    if not path.exists():
        raise LibraryLoadError(f"there is no file {str(path)!r}")
    if path.suffix.lower() not in _SUFFIXES:
        raise LibraryLoadError(
            f"{str(path)!r} is no kernel library: expected a .py file, a .zip archive or a "
            "folder with an __init__.py"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise LibraryLoadError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _archive_package(folder: Path) -> bytes:
    """The package in `folder` as a zip archive, with the package at its top level."""
    folder = folder.resolve()
    if not (folder / "__init__.py").is_file():
        raise LibraryLoadError(
            f"the folder {str(folder)!r} is no package: it has no __init__.py",
            hint="load the file in it that registers the operators",
        )
    content = io.BytesIO()
    try:
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in _package_files(folder):
                entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix(), _ZIP_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    except OSError as error:
        raise LibraryLoadError(f"cannot read {error.filename!r}: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise LibraryLoadError(
            f"the package in {str(folder)!r} has a file whose name is not UTF-8: {error.object!r}"
        ) from None
    return content.getvalue()


def _package_files(folder: Path) -> list[Path]:
    """Every file below `folder`, without hidden ones and byte code, in order of name."""

    def belongs(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        return not hidden and path.is_file()

    return sorted(filter(belongs, folder.rglob("*")))
