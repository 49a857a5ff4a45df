"""Rollback of a library: which version becomes active, and what is kept."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.daemon.libraries.catalog import LibraryCatalog
from opdispatch_server.daemon.libraries.change_log import log_rolled_back
from opdispatch_server.daemon.libraries.journaled_changes import LibraryJournal
from opdispatch_server.daemon.libraries.permissions import check_version
from opdispatch_server.daemon.libraries.retirement import LibraryRetirement
from opdispatch_server.daemon.libraries.scaling import LibraryReplicas
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_wire.errors import LibraryNotFoundError


class LibraryRollback:
    """Reactivates earlier versions. ``published`` announces the one that is active now."""

    def __init__(
        self,
        catalog: LibraryCatalog,
        journal: LibraryJournal,
        replicas: LibraryReplicas,
        retirement: LibraryRetirement,
        published: Callable[[LibraryVersion], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._journal = journal
        self._replicas = replicas
        self._retirement = retirement
        self._published = published

    async def roll_back(
        self, name: str, *, caller: Identity = OWNER
    ) -> tuple[LibraryVersion, LibraryVersion]:
        """Reactivate the version before the active one; return it, and the one that was active.

        The one that was active is kept. Raises LibraryNotFoundError and PermissionDeniedError; and,
        if the previous version cannot be brought back, the reason: then nothing has changed.
        """
        async with self._catalog.line(name):
            top = self._catalog.get_newest(name)
            older = self._catalog.versions_of(name)[:-1]
            if not older:
                raise LibraryNotFoundError(
                    f"library {name!r} has no version before {top.version} to go back to",
                    library=name,
                )
            before = older.pop()
            for each in (top, before):
                check_version(caller, each)
            recording = functools.partial(self._journal.rolling_back, before, top)
            await self._replicas.bring_back_locked(before, top, recording)
            self._catalog.set_versions(name, [*older, top, before])
            self._retirement.supersede(top, [])
            self._catalog.remember_gone(
                set(top.operators) - set(before.operators),
                f"library {name!r}, which had it, was rolled back to version {before.version}",
            )
        log_rolled_back(before, top)
        await self._published(before)
        self._replicas.look_after_all()
        return before, top
