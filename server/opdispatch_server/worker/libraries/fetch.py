"""Fetches uploads from a daemon whose files this interpreter cannot read."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc

from opdispatch_server.library_code.partial_file import PartialFile
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_wire.errors import JournalError, LibraryLoadError
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import interpreter_pb2 as pb

CHUNK_PATIENCE = 30.0
"""Seconds without a chunk after which the request is repeated, from that offset on."""
TRIES = 3
CACHE_BYTES = 64 * 1024**3
"""Size of the cache in bytes beyond which uploads that no interpreter here uses are removed."""


class LibraryFetch:
    """Fetches uploads and unpacks them in ``cache``, which a user's interpreters share."""

    def __init__(self, cache: Path, daemon: str) -> None:
        self.unpacked = UnpackedLibraries(cache)
        self._daemon = daemon

    async def fetch(self, stub: Any, wanted: pb.Fetch) -> None:
        """Fetch an upload, unless it is there.

        Raises LibraryLoadError, and JournalError if the disk refuses; the next attempt resumes,
        unless the disk was full.
        """
        target = self.unpacked.find(wanted.sha256, wanted.filename)
        if target.is_dir():
            return
        try:
            part = await asyncio.to_thread(self._begin, wanted)
            with closing(part):
                if not target.is_dir():  # another interpreter may have fetched it
                    await self._fill(part, stub, wanted)
                    part.check(wanted.filename)
                    await asyncio.to_thread(
                        self.unpacked.unpack, part.path, wanted.sha256, wanted.filename
                    )
                part.remove()
        except OSError as error:
            raise JournalError(
                f"{wanted.filename} cannot be stored: {error.strerror}",
                hint="check the folder given by `opdispatch worker --cache`",
                path=str(self.unpacked.folder),
            ) from error

    def _begin(self, wanted: pb.Fetch) -> PartialFile:
        if self.unpacked.total_bytes() + 2 * wanted.size > CACHE_BYTES:
            self.unpacked.remove()
        return PartialFile(self.unpacked.folder, wanted.sha256, wanted.size)

    async def _fill(self, part: PartialFile, stub: Any, wanted: pb.Fetch) -> None:
        tries = TRIES
        while part.received < part.size:
            before = part.received
            try:
                await self._read(part, stub, wanted)
                if part.received == before:
                    raise LibraryLoadError(f"the daemon has no more of {wanted.filename}")
            except (grpc.RpcError, TimeoutError) as error:
                tries = TRIES if part.received > before else tries - 1
                if not tries:
                    raise self._failure(error, wanted) from error
            except (OSError, LibraryLoadError):
                part.remove()
                raise

    async def _read(self, part: PartialFile, stub: Any, wanted: pb.Fetch) -> None:
        call = stub.FetchLibrary(pb.FetchLibraryRequest(sha256=wanted.sha256, offset=part.received))
        try:
            while True:
                reply = await asyncio.wait_for(call.read(), CHUNK_PATIENCE)
                if not isinstance(reply, pb.FetchLibraryReply):
                    return  # grpc.aio.EOF
                await asyncio.to_thread(part.append, reply.chunk, wanted.filename)
        finally:
            call.cancel()

    def _failure(self, error: Exception, wanted: pb.Fetch) -> LibraryLoadError:
        why = f"nothing was received for {CHUNK_PATIENCE:g} s"
        if isinstance(error, grpc.RpcError):
            why = error_from_rpc(error, address=self._daemon).message
        return LibraryLoadError(f"{wanted.filename} could not be fetched from the daemon: {why}")


def default_cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/opdispatch``, or the standard default for it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "opdispatch" / "libraries"
