"""The source of a library, as the request that uploads it.

A library is one ``.py`` file, a ``.zip`` archive of modules, a folder that is a package (sent
as such an archive), or the dotted name of a module that the interpreter can import. Files are read
here, because the daemon may not have access to the client's disk. Small files are sent in the
request; others are uploaded first.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from opdispatch.schema.default import check_device
from opdispatch_wire.errors import LibraryLoadError, WireError
from opdispatch_wire.library_content import FileContent, FolderContent, LibraryContent
from opdispatch_wire.requirements_file import Requirements, read_requirements
from opdispatch_wire.v1 import registry_pb2

_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SCRIPT_METADATA = re.compile(rb"^# /// script\s*$", re.MULTILINE)
_SUFFIXES = (".py", ".zip")
METADATA_LIMIT = 64 * 1024
"""How many bytes at the start of a file may contain its script metadata."""
INLINE_BYTES_LIMIT = 256 * 1024
"""The largest file that is sent in the request itself, in bytes."""


class LoadSource(NamedTuple):
    """A request to load a library, and the content to upload first, if any."""

    request: registry_pb2.LoadLibraryRequest
    content: LibraryContent | None = None


def load_source(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    interpreter: str | None = None,
    interpreters: int | None = None,
    min_ready: int | None = None,
    on: str | None = None,
    requirements: Requirements | None = None,
    python: str | os.PathLike[str] | None = None,
    isolated: bool = False,
    inline_bytes: int = INLINE_BYTES_LIMIT,
) -> LoadSource:
    """Return the request that loads `source`, `on` an interpreter or a type of device.

    A string without a path separator that does not end in ``.py`` or ``.zip`` is a module name,
    unless it has a dot and is the name of a file. Raises LibraryLoadError if it is neither, or if
    the file is missing, cannot be read, or is of another kind; WireError for fewer interpreters
    than one, or than `min_ready`. A file of more than `inline_bytes` has to be uploaded first.
    """
    if interpreters is not None and interpreters < 1:
        raise WireError(f"interpreters is {interpreters}; expected 1 or more")
    if min_ready is not None and not 1 <= min_ready <= (interpreters or min_ready):
        most = f", and at most {interpreters}, the interpreters" if interpreters else ""
        raise WireError(f"min_ready is {min_ready}; expected 1 or more{most}")
    device = on if on is not None and _is_device(on) else ""
    request = registry_pb2.LoadLibraryRequest(
        name=name or "",
        interpreter=interpreter or ("" if device else on) or "",
        interpreters=interpreters or 0,
        min_ready=min_ready or 0,
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
        return LoadSource(request)
    path = Path(os.path.expanduser(source))
    content: LibraryContent
    if os.path.isdir(path):
        content = FolderContent(_check_package(path.resolve()))
        request.filename = f"{_as_text(path.resolve().name)}.zip"
    else:
        content = FileContent(_check_file(path))
        request.filename = _as_text(path.name)
    request.sha256 = content.sha256
    if content.size > inline_bytes:
        request.uploaded = content.sha256
        return LoadSource(request, content)
    request.content = b"".join(content.chunks())
    return LoadSource(request)


def _is_device(on: str) -> bool:
    try:
        check_device(on)
    except ValueError:
        return False
    return True


def needs_environment(request: registry_pb2.LoadLibraryRequest) -> bool:
    """Return whether the daemon may have to build an environment or start an interpreter for it."""
    return (
        request.isolated
        or request.HasField("environment")
        or request.HasField("uploaded")  # its script metadata may be in the upload
        or _SCRIPT_METADATA.search(request.content, 0, METADATA_LIMIT) is not None
        or request.filename.endswith(".zip")  # it may be in the archive
    )


def _absolute_path(python: str | os.PathLike[str]) -> str:
    text = os.fspath(python)
    found = text if os.sep in text else shutil.which(text) or text
    # Not resolved: the Python of a virtual environment is a link.
    return str(Path(os.path.expanduser(found)).absolute())


def _as_text(filename: str) -> str:
    """Return a file's name in a form that can be sent, even if its bytes are not UTF-8."""
    return os.fsencode(filename).decode(errors="replace")


def _looks_like_path(text: str) -> bool:
    separators = tuple(filter(None, (os.sep, os.altsep)))
    if text.lower().endswith(_SUFFIXES) or any(separator in text for separator in separators):
        return True
    return "." in text and os.path.isfile(text)  # `edges.txt` is not a module `txt` in `edges`


def _check_package(folder: Path) -> Path:
    if not (folder / "__init__.py").is_file():
        raise LibraryLoadError(
            f"the folder {str(folder)!r} is not a package: it has no __init__.py",
            hint="load the file in it that registers the operators",
        )
    return folder


def _check_file(path: Path) -> Path:
    if not os.path.exists(path):
        raise LibraryLoadError(f"there is no file {str(path)!r}")
    if path.suffix.lower() not in _SUFFIXES:
        raise LibraryLoadError(
            f"{str(path)!r} is not a kernel library; expected a .py file, a .zip archive or a "
            "folder with an __init__.py"
        )
    return path
