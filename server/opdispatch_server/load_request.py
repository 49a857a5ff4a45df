"""What a client asks to be loaded, checked before anything is done about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath, PureWindowsPath

from opdispatch_server.library_store import digest_content
from opdispatch_server.library_version import LibrarySource
from opdispatch_server.module_file import digest_module
from opdispatch_wire.errors import LibraryLoadError, WireError
from opdispatch_wire.v1 import registry_pb2

_NAME = re.compile(r"[\w][\w.+ -]{0,199}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A library's name, where its code comes from and, for an upload, the code."""

    name: str
    source: LibrarySource
    content: bytes | None


def read_load_request(request: registry_pb2.LoadLibraryRequest) -> LoadRequest:
    """Takes a request apart. Raises WireError or LibraryLoadError."""
    match request.WhichOneof("source"):
        case "content":
            label = _last_part(request.filename)
            if not label:
                raise WireError(
                    "$.filename is empty; its suffix, .py or .zip, says what the content is"
                )
            name = request.name or PurePosixPath(label).stem
            source = LibrarySource(label, digest_content(request.content))
            return LoadRequest(_check_name(name), source, request.content)
        case "module":
            label = request.module
            if not _MODULE.fullmatch(label):
                raise LibraryLoadError(
                    f"{label!r} is not the dotted name of a module, such as 'package.kernels'"
                )
            name = request.name or label.rpartition(".")[2]
            source = LibrarySource(label, digest_module(label), is_module=True)
            return LoadRequest(_check_name(name), source, None)
        case _:
            raise WireError("$.source is missing; expected content or module")


def _last_part(filename: str) -> str:
    path: PurePath = PureWindowsPath(filename) if "\\" in filename else PurePosixPath(filename)
    return path.name


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise LibraryLoadError(
            f"{name[:200]!r} cannot be the name of a library; expected up to 200 letters, digits, "
            "'_', '-', '+', '.' and spaces, the first one a letter, a digit or '_'"
        )
    return name
