"""What a client asks to be loaded, checked before anything is done about it."""

from __future__ import annotations

import re
from pathlib import PurePath, PurePosixPath, PureWindowsPath

from opdispatch_server.library_loading import LoadOrder
from opdispatch_server.library_store import digest_content
from opdispatch_server.library_version import LibrarySource
from opdispatch_server.module_file import digest_module
from opdispatch_server.placement import Place
from opdispatch_wire.errors import LibraryLoadError, WireError
from opdispatch_wire.v1 import registry_pb2

_NAME = re.compile(r"[\w][\w.+ -]{0,199}")
_DEVICE = re.compile(r"(cpu|cuda(:\d+)?)?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_load_request(
    request: registry_pb2.LoadLibraryRequest,
    *,
    loaded_by: str = "",
    patience: float | None = None,
) -> LoadOrder:
    """Takes a request apart. Raises WireError or LibraryLoadError."""
    name, source, content = _read_source(request)
    if not _DEVICE.fullmatch(request.device):
        raise WireError(f"$.device is {request.device!r}; expected cpu, cuda or cuda:NUMBER")
    return LoadOrder(
        _check_name(name),
        source,
        content,
        place=Place(request.interpreter, request.device),
        interpreters=request.interpreters,
        loaded_by=loaded_by,
        patience=patience,
    )


def _read_source(
    request: registry_pb2.LoadLibraryRequest,
) -> tuple[str, LibrarySource, bytes | None]:
    match request.WhichOneof("source"):
        case "content":
            label = _last_part(request.filename)
            if not label:
                raise WireError(
                    "$.filename is empty; its suffix, .py or .zip, says what the content is"
                )
            source = LibrarySource(label, digest_content(request.content))
            return request.name or PurePosixPath(label).stem, source, request.content
        case "module":
            label = request.module
            if not _MODULE.fullmatch(label):
                raise LibraryLoadError(
                    f"{label!r} is not the dotted name of a module, such as 'package.kernels'"
                )
            source = LibrarySource(label, digest_module(label), is_module=True)
            return request.name or label.rpartition(".")[2], source, None
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
