"""Unload one version of a library, or all, and activate the version below."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.daemon.board.health import HealthBoard
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.libraries.catalog import LibraryCatalog
from opdispatch_server.daemon.libraries.change_log import log_unloaded
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.journaled_changes import LibraryJournal
from opdispatch_server.daemon.libraries.memory_given_back import MemoryGivenBack, MemoryMeter
from opdispatch_server.daemon.libraries.permissions import check_version
from opdispatch_server.daemon.libraries.publication import LibraryPublication
from opdispatch_server.daemon.libraries.retirement import DIRECT_CALLS_WAIT, LibraryRetirement
from opdispatch_server.daemon.libraries.scaling import LibraryReplicas
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.fault_points import FaultPoint, fault_point


class LibraryUnloading:
    """Unloads libraries. ``announce`` wakes the waiters for libraries that are gone now."""

    def __init__(
        self,
        catalog: LibraryCatalog,
        publication: LibraryPublication,
        pools: InterpreterPools,
        health: HealthBoard,
        blame: Blame,
        journal: LibraryJournal,
        replicas: LibraryReplicas,
        retirement: LibraryRetirement,
        announce: Callable[[], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._publication = publication
        self._pools = pools
        self._health = health
        self._blame = blame
        self._journal = journal
        self._replicas = replicas
        self._retirement = retirement
        self._announce = announce

    async def unload(
        self, name: str, number: int, *, measure: bool = False, caller: Identity = OWNER
    ) -> tuple[LibraryVersion | None, MemoryGivenBack]:
        """Unload one version, or all if ``number`` is 0; return the version that is then active.

        With ``measure``, also measures the memory that the remaining interpreters give back. Raises
        LibraryNotFoundError and PermissionDeniedError; and, if the version below cannot be brought
        back, the reason: then nothing has changed.
        """
        async with self._catalog.line(name):
            versions = self._catalog.versions_of(name)
            for each in versions:
                check_version(caller, each)
            gone = [v for v in versions if number in (0, v.version)]
            if not gone:
                raise self._catalog.not_found(name, number)
            meter = await self._start_measuring(gone, staying=measure)
            below = [version for version in versions if version not in gone]
            active, top = below[-1] if below else None, versions[-1]
            brings_back = active is not None and top in gone
            recording = functools.partial(
                self._journal.unloading, gone[-1], below, publishes=brings_back
            )
            if active is not None and brings_back:
                await self._replicas.bring_back_locked(active, top, recording)
            async with nullcontext() if brings_back else recording():
                self._catalog.remember_gone(
                    {operator for version in gone for operator in version.operators}
                    - set(active.operators if active else ()),
                    f"library {name!r}, which had it, was unloaded",
                )
                async with self._publication.routes.closed(), self._publication.lock:
                    await self._publication.withdraw(gone, VersionState.GONE)
                fault_point(FaultPoint.WITHDRAWN)
                self._catalog.set_versions(name, below)
            await self._announce()
            busy = any(version.calls_in_flight for version in gone)
            await self._retirement.release(gone, DIRECT_CALLS_WAIT)
        if top in gone:
            self._blame.forget(name, top.operators)
        await self._health.library(name, serving=active.is_active if active else None)
        log_unloaded(gone, active)
        self._replicas.look_after_all()
        return active, await meter.finish(busy=busy)

    async def _start_measuring(self, gone: list[LibraryVersion], *, staying: bool) -> MemoryMeter:
        """Take the first memory measurement, before versions are removed."""
        ending = self._pools.ends_with([v.pool for v in gone if v.pool is not None])
        holders = {replica.session for version in gone for replica in version.replicas}
        return await MemoryMeter.start(ending, holders - set(ending) if staying else ())
