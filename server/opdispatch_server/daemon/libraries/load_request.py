"""Requests to load a library, checked before anything is changed."""

from __future__ import annotations

import asyncio
import re
import reprlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath, PurePosixPath, PureWindowsPath

from opdispatch.errors import RegistrationError
from opdispatch.schema.default import check_device
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.environments.library_home import LibraryHome, read_home
from opdispatch_server.daemon.libraries.loading import LoadOrder
from opdispatch_server.daemon.libraries.placement import Place
from opdispatch_server.library_code.digest import digest_content, is_digest
from opdispatch_server.library_code.library_archive import read_main_source
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.library_code.module_file import digest_module
from opdispatch_wire.errors import LibraryLoadError, PermissionDeniedError, WireError
from opdispatch_wire.v1 import registry_pb2

_NAME = re.compile(r"[\w][\w.+ -]{0,199}")
LONGEST_NAME = 255
"""The longest name of a file or a module, in characters."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@asynccontextmanager
async def reading_load_request(
    request: registry_pb2.LoadLibraryRequest,
    store: LibraryStore,
    *,
    loaded_by: str = "",
    caller: Identity = OWNER,
    patience: float | None = None,
) -> AsyncIterator[LoadOrder]:
    """Parse a request to load a library; keep the upload that it refers to during the block.

    If the body raises because of the upload's content, the upload is removed. Raises WireError,
    LibraryLoadError and JournalError.
    """
    digest = ""
    if request.WhichOneof("source") == "content":
        digest = await asyncio.to_thread(digest_content, request.content)
    elif request.WhichOneof("source") == "uploaded":
        digest = request.uploaded.lower()
    store.begin_load(digest)
    is_useless = False
    try:
        yield await asyncio.to_thread(_read, request, store, digest, loaded_by, caller, patience)
    except (LibraryLoadError, RegistrationError, PermissionDeniedError):
        is_useless = True
        raise
    finally:
        await asyncio.to_thread(store.end_load, digest, is_useless=is_useless)


def _read(
    request: registry_pb2.LoadLibraryRequest,
    store: LibraryStore,
    digest: str,
    loaded_by: str,
    caller: Identity,
    patience: float | None,
) -> LoadOrder:
    name, source = _read_source(request, store, digest)
    if request.device:
        try:
            check_device(request.device)
        except ValueError as error:
            shown = reprlib.repr(request.device)
            raise WireError(f"$.device is {shown}; expected {error}") from None
    if 0 < request.interpreters < request.min_ready:
        raise WireError(
            f"$.min_ready is {request.min_ready}; expected at most $.interpreters, which is "
            f"{request.interpreters}"
        )
    return LoadOrder(
        name,
        source,
        place=Place(request.interpreter, request.device),
        interpreters=request.interpreters,
        min_ready=request.min_ready,
        loaded_by=loaded_by,
        caller=caller,
        patience=patience,
    )


def _read_source(
    request: registry_pb2.LoadLibraryRequest, store: LibraryStore, digest: str
) -> tuple[str, LibrarySource]:
    match request.WhichOneof("source"):
        case "content" | "uploaded":
            label = _last_part(request.filename)
            if not label:
                raise WireError(
                    "$.filename is empty; its suffix, .py or .zip, says what the content is"
                )
            if len(label) > LONGEST_NAME:
                raise WireError(
                    f"$.filename has {len(label)} characters; the limit is {LONGEST_NAME}"
                )
            name = _check_name(request.name or PurePosixPath(label).stem)
            _keep_upload(request, store, digest, label)
            # A malicious archive is refused here, before any interpreter sees it.
            script = read_main_source(store.get_path(digest), label, name)
            return name, LibrarySource(label, digest, home=_read_home(request, script, label))
        case "module":
            label = request.module
            if len(label) > LONGEST_NAME or not _MODULE.fullmatch(label):
                raise LibraryLoadError(
                    f"{label[:200]!r} is not the dotted name of a module, such as "
                    f"'package.kernels', of at most {LONGEST_NAME} characters"
                )
            name = _check_name(request.name or label.rpartition(".")[2])
            home = _read_home(request, b"", label)
            # A module in another environment gets its digest once that environment is built.
            digest = "" if home.has_environment else digest_module(label)
            return name, LibrarySource(label, digest, is_module=True, home=home)
        case _:
            raise WireError("$.source is missing; expected content or module")


def _read_home(request: registry_pb2.LoadLibraryRequest, script: bytes, label: str) -> LibraryHome:
    environment = request.environment if request.HasField("environment") else None
    home = read_home(environment, isolated=request.isolated, script=script, label=label)
    if request.interpreter and not home.is_shared:
        raise LibraryLoadError(
            f"{label} needs interpreters of its own, so it cannot be loaded into "
            f"{request.interpreter}"
        )
    return home


def _keep_upload(
    request: registry_pb2.LoadLibraryRequest, store: LibraryStore, digest: str, label: str
) -> None:
    if request.HasField("uploaded"):
        if not is_digest(digest):
            raise WireError(f"$.uploaded is {digest[:80]!r}; expected a SHA-256 in hexadecimal")
        if not store.has(digest):
            raise LibraryLoadError(
                f"{label}, with the SHA-256 {digest}, has not been uploaded",
                hint="it was removed meanwhile, or never came; load it again",
            )
        return
    if request.sha256 and request.sha256.lower() != digest:
        raise LibraryLoadError(
            f"{label} arrived with the SHA-256 {digest}; expected {request.sha256[:100]}",
            hint="it was changed on the way, or is another file",
        )
    store.put(request.content)


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
