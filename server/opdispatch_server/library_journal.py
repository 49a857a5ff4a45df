"""Versions of libraries, as the registry has them, into the journal and out of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from opdispatch_server.journal import Journal
from opdispatch_server.journal_record import LibraryRecord, VersionRecord
from opdispatch_server.library_version import LibraryVersion
from opdispatch_server.module_file import digest_module

LOG = logging.getLogger("opdispatch.journal")


class LibraryJournal:
    """What the registry tells the journal. Belongs to the event loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._positions: dict[str, int] = {}

    def open(self) -> list[LibraryRecord]:
        """The libraries as they were acknowledged last, in the order of their publication.

        Raises as Journal.open does.
        """
        records = sorted(self._journal.open().values(), key=lambda record: record.position)
        self._positions = {record.name: record.position for record in records}
        return records

    def changing(
        self,
        event: str,
        name: str,
        last_version: int,
        versions: Sequence[LibraryVersion],
        *,
        publishes: bool = True,
    ) -> AbstractAsyncContextManager[None]:
        """Records that library ``name`` will have ``versions``, and undoes that on failure.

        The last of them is to be active. ``publishes``: its kernels become the newest of all.
        Raises JournalError on entering, before anything else.
        """
        position = self._positions.get(name, 0)
        if publishes or not position:
            position = self._positions[name] = max(self._positions.values(), default=0) + 1
        active = versions[-1].version if versions else 0
        kept = tuple(record_version(version) for version in versions)
        record = LibraryRecord(name, last_version, position, active, kept)
        return self._journal.recording(event, record)


def record_version(version: LibraryVersion) -> VersionRecord:
    """What it takes to have this version again."""
    return VersionRecord(
        version.version,
        version.source,
        version.loaded_at,
        tuple(version.operators),
        version.has_fallbacks,
    )


def version_from_record(name: str, record: VersionRecord, load_id: int) -> LibraryVersion:
    """The version of a record, not loaded anywhere yet."""
    source = record.source
    if source.is_module and (sha256 := digest_module(source.label)) not in ("", source.sha256):
        LOG.warning("module %s is not what it was when %s was loaded", source.label, name)
        source = replace(source, sha256=sha256)
    version = LibraryVersion(name, record.version, load_id, source)
    version.loaded_at = record.loaded_at
    version.expect(record.operators, has_fallbacks=record.has_fallbacks)
    return version
