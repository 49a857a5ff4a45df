"""Uploads of libraries, received in chunks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import Any, TypeVar

from opdispatch_server.library_code.digest import is_digest
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.library_code.partial_file import PartialFile
from opdispatch_server.serving.grpc_services import Malformed
from opdispatch_wire.errors import DeadlineExceededError, WireError
from opdispatch_wire.library_source import LoadSource
from opdispatch_wire.v1 import registry_pb2 as pb

T = TypeVar("T")

CHUNK_PATIENCE = 10.0
"""Seconds without a chunk after which an upload counts as broken off; another can resume it."""
WAITING_SAID_EVERY = 1.0
PROGRESS_BYTES = 4 * 1024**2
"""Bytes received between two replies."""


class LibraryUploads:
    """Uploads in progress, one at a time for each file. For use in the event loop only."""

    def __init__(self, store: LibraryStore) -> None:
        self._store = store
        # Held by the upload that writes; kept while any upload of that digest is in progress.
        self._turns: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    async def receive(
        self, requests: AsyncIterator[pb.UploadLibraryRequest]
    ) -> AsyncGenerator[pb.UploadLibraryReply, None]:
        """Store a file; see UploadLibrary.

        Raises WireError, LibraryLoadError, JournalError, and DeadlineExceededError if chunks stop
        coming: what was received stays, so that the client can resume.
        """
        file = _check_file(await _next(requests))
        turn = self._turns.setdefault(file.sha256, asyncio.Lock())
        self._users[file.sha256] += 1
        try:
            while not await _acquired(turn):
                yield pb.UploadLibraryReply(waiting=True)
            try:
                async with aclosing(self._receive(file, requests)) as replies:
                    async for reply in replies:
                        yield reply
            finally:
                turn.release()
        finally:
            self._users[file.sha256] -= 1
            if not self._users[file.sha256]:
                del self._users[file.sha256], self._turns[file.sha256]

    async def _receive(
        self, file: pb.UploadedFile, requests: AsyncIterator[pb.UploadLibraryRequest]
    ) -> AsyncGenerator[pb.UploadLibraryReply, None]:
        store, label = self._store, file.filename
        if not store.has(file.sha256):
            # Beginning and end may take long: the existing part is read, and received data is
            # synced.
            beginning = _in_thread(store.begin, file.sha256, file.size, label)
            try:
                async for reply in _until_done(beginning):
                    yield reply
                async with aclosing(self._fill(beginning.result(), label, requests)) as filling:
                    async for received in filling:
                        yield pb.UploadLibraryReply(received=received)
                ending = _in_thread(store.end, beginning.result(), label)
                async for reply in _until_done(ending):
                    yield reply
            finally:
                if beginning.done() and beginning.exception() is None:
                    await asyncio.to_thread(store.close, beginning.result())
        yield pb.UploadLibraryReply(received=file.size, stored=True)

    async def _fill(
        self, part: PartialFile, label: str, requests: AsyncIterator[pb.UploadLibraryRequest]
    ) -> AsyncGenerator[int, None]:
        yield part.received
        told = part.received
        while part.received < part.size:
            request = await _next(requests)
            if request.WhichOneof("kind") != "chunk" or not request.chunk:
                raise WireError("$.kind is not a chunk; expected the next bytes of the file")
            appending = _in_thread(self._store.append, part, request.chunk, label)
            try:
                await asyncio.shield(appending)
            finally:
                await asyncio.wait({appending})  # nothing is closed in the middle of a write
            if part.received - told >= PROGRESS_BYTES:
                told = part.received
                yield told


def store_content(store: LibraryStore, source: LoadSource) -> None:
    """Store the upload that a load needs, from this machine's own disk.

    Raises LibraryLoadError and JournalError.
    """
    content, label = source.content, source.request.filename
    if content is None or store.has(content.sha256):
        return
    part = store.begin(content.sha256, content.size, label)
    try:
        for chunk in content.chunks(part.received):
            store.append(part, chunk, label)
        store.end(part, label)
    finally:
        store.close(part)


def _check_file(request: pb.UploadLibraryRequest) -> pb.UploadedFile:
    if request.WhichOneof("kind") != "file":
        raise WireError("$.kind is not file; an upload begins with it")
    file = request.file
    if not is_digest(file.sha256):
        raise WireError(
            f"$.file.sha256 is {file.sha256[:80]!r}; expected 64 lowercase hexadecimal digits"
        )
    label = PurePosixPath(file.filename).name
    if not label:
        raise WireError("$.file.filename is empty; its suffix, .py or .zip, says what it is")
    file.filename = label[:255]
    return file


async def _next(requests: AsyncIterator[pb.UploadLibraryRequest]) -> pb.UploadLibraryRequest:
    try:
        request = await asyncio.wait_for(anext(requests, None), CHUNK_PATIENCE)
    except TimeoutError:
        raise DeadlineExceededError(
            f"nothing of the upload has come for {CHUNK_PATIENCE:g} s",
            hint="load the library again: what has come is not sent twice",
        ) from None
    if request is None:
        raise WireError("$: the upload has ended before the file was whole")
    if isinstance(request, Malformed):
        raise request.error()
    return request


def _in_thread(function: Callable[..., T], *args: object) -> asyncio.Task[T]:
    return asyncio.create_task(asyncio.to_thread(function, *args))


async def _until_done(task: asyncio.Task[Any]) -> AsyncGenerator[pb.UploadLibraryReply, None]:
    """Yield keep-alive replies until ``task`` is done; raise its error."""
    try:
        while not (await asyncio.wait({task}, timeout=WAITING_SAID_EVERY))[0]:
            yield pb.UploadLibraryReply(waiting=True)
    finally:
        await asyncio.wait({task})  # although the client has gone: its file is not closed under it
    task.result()


async def _acquired(turn: asyncio.Lock) -> bool:
    try:
        async with asyncio.timeout(WAITING_SAID_EVERY):
            return await turn.acquire()
    except TimeoutError:
        return False
