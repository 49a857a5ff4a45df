"""Writes the libraries of the catalog to the journal, and restores them when a daemon starts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from opdispatch_server.daemon.libraries.catalog import KEPT_VERSIONS, LibraryCatalog
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.daemon.state.journal import Journal
from opdispatch_server.daemon.state.journal_record import LibraryRecord, VersionRecord
from opdispatch_server.library_code.module_file import digest_module
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.journal")


class LibraryJournal:
    """The registry's side of the journal, used with the name's line held. See journal.py.

    Each change is a context manager: the change is recorded on entry, and undone if the body
    raises. Entry raises JournalError, and then nothing has changed. Changes that publish something
    are entered in the order of publication, which is that of their positions. For use in the event
    loop only.
    """

    def __init__(self, journal: Journal, catalog: LibraryCatalog) -> None:
        self._journal = journal
        self._catalog = catalog
        self._next_position = 1

    def restore_catalog(self) -> list[LibraryVersion]:
        """Restore the catalog to the last acknowledged state; no library is loaded yet.

        Returns the versions that are to be active, in order of publication. Blocks. Raises the
        errors of Journal.open.
        """
        records = sorted(self._journal.open().values(), key=lambda record: record.position)
        self._next_position = max((record.position for record in records), default=0) + 1
        return [version for record in records for version in self._adopt(record)[-1:]]

    def loading(
        self, version: LibraryVersion, replaced: LibraryVersion | None
    ) -> AbstractAsyncContextManager[None]:
        """Record that a version becomes active in place of another, which is kept."""
        version.loaded_at = datetime.now(UTC)
        left = [each for each in self._catalog.versions_of(version.name) if each is not version]
        return self._changing("load", version, [*left, version][-KEPT_VERSIONS:])

    def unloading(
        self, gone: LibraryVersion, left: Sequence[LibraryVersion], *, publishes: bool
    ) -> AbstractAsyncContextManager[None]:
        """Record the removal of versions.

        Of the versions ``left``, the last is active; it becomes so if the change ``publishes`` it.
        """
        return self._changing("unload", gone, left, publishes=publishes)

    def rolling_back(
        self, version: LibraryVersion, replaced: LibraryVersion
    ) -> AbstractAsyncContextManager[None]:
        """Record that a kept version becomes active in place of another."""
        return self._changing("roll back to", version, [replaced, version])

    async def record_wanted(self, version: LibraryVersion, interpreters: int) -> None:
        """Record how many interpreters are to hold a version. Raises JournalError."""
        before = version.interpreters_wanted
        version.interpreters_wanted = interpreters
        versions = self._catalog.versions_of(version.name)
        try:
            async with self._changing("scale", version, versions, publishes=False):
                pass
        except BaseException:  # including cancellation: the change will be undone
            version.interpreters_wanted = before
            raise

    async def record_drained(self, interpreter: str, *, drained: bool) -> None:
        """Record that an interpreter is drained, or no longer is. Raises JournalError."""
        await self._journal.record_drained(interpreter, drained)

    @property
    def drained(self) -> frozenset[str]:
        """The interpreters that are drained, and so are given nothing new."""
        return self._journal.drained

    @asynccontextmanager
    async def _changing(
        self,
        event: str,
        version: LibraryVersion,
        left: Sequence[LibraryVersion],
        *,
        publishes: bool = True,
    ) -> AsyncIterator[None]:
        name = version.name
        before = position = left[-1].position if left else 0
        if publishes:
            position = self._next_position
            self._next_position += 1
        record = LibraryRecord(
            name,
            max(self._catalog.last_version(name), version.version),
            position,
            left[-1].version if left else 0,
            tuple(_record_version(each) for each in left),
        )
        async with self._journal.recording(f"{event} v{version.version}", record):
            for active in left[-1:]:
                active.position = position
            try:
                yield
            except BaseException:
                for active in left[-1:]:
                    active.position = before
                raise

    def _adopt(self, record: LibraryRecord) -> list[LibraryVersion]:
        versions = [
            _version_from_record(record.name, version, self._catalog.new_load_id())
            for version in record.versions
        ]
        for version in versions:
            active = version.version == record.active
            version.state = VersionState.WAITING if active else VersionState.KEPT
            version.position = record.position if active else 0
        versions.sort(key=lambda version: version.state is VersionState.WAITING)
        self._catalog.set_versions(record.name, versions)
        self._catalog.note_last_version(record.name, record.last_version)
        return versions


def _record_version(version: LibraryVersion) -> VersionRecord:
    """Return a record from which this version can be loaded again."""
    options: dict[str, Any] = {
        "interpreters_wanted": version.interpreters_wanted,
        "device": version.device,
        "loaded_by": version.loaded_by,
    }
    return VersionRecord(
        version.version,
        version.source,
        version.loaded_at,
        tuple(version.operators),
        version.has_fallbacks,
        options,
    )


def _version_from_record(name: str, record: VersionRecord, load_id: int) -> LibraryVersion:
    """Return the version of a record; no interpreter has loaded it yet."""
    source = record.source
    if source.is_module and not source.home.has_environment:
        sha256 = digest_module(source.label)
        if sha256 not in ("", source.sha256):
            LOG.warning(
                "module %s is not what it was when %s was loaded",
                source.label,
                name,
                extra=fields(Event.LIBRARY_RESTORED, library=name),
            )
            source = replace(source, sha256=sha256)
    version = LibraryVersion(name, record.version, load_id, source)
    version.loaded_at = record.loaded_at
    version.expect(record.operators, has_fallbacks=record.has_fallbacks)
    version.interpreters_wanted = int(record.options.get("interpreters_wanted", 1))
    version.device = str(record.options.get("device", ""))
    version.loaded_by = str(record.options.get("loaded_by", ""))
    return version
