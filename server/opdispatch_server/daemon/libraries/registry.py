"""The daemon's libraries: loaded, replaced, rolled back, scaled, unloaded."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.daemon.board.health import HealthBoard
from opdispatch_server.daemon.environments.build import Report
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.availability import LibraryAvailability
from opdispatch_server.daemon.libraries.catalog import LibraryCatalog
from opdispatch_server.daemon.libraries.change_log import about, log_scaled
from opdispatch_server.daemon.libraries.device_holders import DeviceHolders
from opdispatch_server.daemon.libraries.draining import InterpreterDraining
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.journaled_changes import LibraryJournal
from opdispatch_server.daemon.libraries.loading import LibraryLoading, LoadOrder, LoadOutcome
from opdispatch_server.daemon.libraries.permissions import check_version
from opdispatch_server.daemon.libraries.placement import Placement
from opdispatch_server.daemon.libraries.publication import LibraryPublication
from opdispatch_server.daemon.libraries.retirement import DIRECT_CALLS_WAIT, LibraryRetirement
from opdispatch_server.daemon.libraries.rollback import LibraryRollback
from opdispatch_server.daemon.libraries.scaling import LibraryReplicas
from opdispatch_server.daemon.libraries.unloading import LibraryUnloading
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.daemon.libraries.wait_reasons import LibraryWaits
from opdispatch_server.daemon.state.journal import Journal
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import WireError
from opdispatch_wire.v1 import registry_pb2

LOG = logging.getLogger("opdispatch.libraries")


class LibraryRegistry:
    """Every operation on libraries.

    Changes to one name are made one after the other (``LibraryCatalog.line``), changes to different
    names concurrently: an import may take any time without delaying other loads. Handling an
    interpreter's death must not wait for imports, so it takes only the publication's ``lock``,
    which is never held for long.

    Locks are taken in this order: a name's line, an interpreter (``Placement.claim``), a race's
    turn, the publication's order, its lock.
    """

    def __init__(
        self,
        publication: LibraryPublication,
        sessions: InterpreterSessions,
        pools: InterpreterPools,
        health: HealthBoard,
        load_timeout: float,
        journal: Journal,
        blame: Blame,
    ) -> None:
        self._publication = publication
        self._blame = blame
        self._sessions = sessions
        self._pools = pools
        self._health = health
        self._load_timeout = load_timeout
        self.catalog = LibraryCatalog()
        """The catalog; any part may read it."""
        self._journal = LibraryJournal(journal, self.catalog)
        self.devices = DeviceHolders(self.catalog.newest)
        self.placement = Placement(
            sessions, pools, self.catalog.all_versions, self.devices, blame.separation
        )
        self._background: set[asyncio.Task[Any]] = set()
        self._retirement = LibraryRetirement(publication, pools, blame, self._start)
        self._replicas = LibraryReplicas(
            self.catalog,
            publication,
            self.placement,
            pools,
            health,
            blame,
            self._start,
            load_timeout=load_timeout,
            published=self._published,
            joined=lambda: self.availability.announce(),
            give_up=self._give_up,
        )
        self._loading = LibraryLoading(
            self.catalog,
            publication,
            self.placement,
            pools,
            self._start,
            self._journal,
            load_timeout=load_timeout,
            fill=self._replicas.fill_locked,
            supersede=self._retirement.supersede,
            published=self._published,
            leaving=lambda: list(self._retirement.leaving),
        )
        self._draining = InterpreterDraining(sessions, self._journal, self.placement)
        self._stopped = False
        self._waits = LibraryWaits(pools, self.placement)
        self.availability = LibraryAvailability(pools, self.catalog.newest, publication.lock)
        self.unloading = LibraryUnloading(
            self.catalog,
            publication,
            pools,
            health,
            blame,
            self._journal,
            self._replicas,
            self._retirement,
            self.availability.announce,
        )
        """Unloads libraries."""
        self.rollback = LibraryRollback(
            self.catalog, self._journal, self._replicas, self._retirement, self._published
        )
        """Rolls libraries back."""
        sessions.on_joined = self._replicas.interpreter_joined
        sessions.on_left = self._interpreter_left
        pools.on_ended = self._interpreter_ended

    @property
    def publication(self) -> asyncio.Lock:
        """The lock held while the dispatcher and the state of the libraries change together."""
        return self._publication.lock

    def to_proto(self, version: LibraryVersion) -> registry_pb2.Library:
        """Return a version as clients see it, with what it waits for."""
        message = version.to_proto()
        message.waiting_for = self._waits.describe(version)
        return message

    # -- queries --------------------------------------------------------------------------------

    async def find_disagreements(self) -> list[str]:
        """Return how the registrations of interpreters differ from the daemon's, in words."""
        return await self._publication.find_disagreements(self.catalog.all_versions)

    def blame_changed(self) -> None:
        """Move libraries after a change in what is blamed for deaths."""
        if not self._stopped:
            self._replicas.blame_changed()

    def fitness_changed(self) -> None:
        """Update replicas after interpreters became able or unable to serve calls."""
        if not self._stopped:
            self._replicas.fitness_changed()

    def interpreter_quarantined(self) -> None:
        """Wake all tasks that wait for an interpreter, to check again."""
        self.placement.note_change()
        self._start(self.availability.announce())

    async def heard(self) -> None:
        """Wait until the interpreters that listen know of the changes so far."""
        await self._publication.routes.heard()

    # -- restoring from the journal -------------------------------------------------------------

    async def adopt(self) -> None:
        """Adopt the libraries in the journal; they wait for interpreters from now on.

        Raises JournalError.
        """
        self._replicas.restoring = await asyncio.to_thread(self._journal.restore_catalog)
        self._draining.restore()
        await self._health.restoring(bool(self._replicas.restoring))
        for version in self._replicas.restoring:
            await self._health.library(version.name, serving=False)

    async def restore(self, timeout: float) -> bool:
        """Load what was adopted; return False after ``timeout``, and continue in the background."""
        done, _ = await asyncio.wait({self._start(self._replicas.restore())}, timeout=timeout)
        await self._health.restoring(False)
        return bool(done)

    # -- changes --------------------------------------------------------------------------------

    async def load(self, order: LoadOrder, report: Report = lambda line: None) -> LoadOutcome:
        """Load a library; ``report`` is called before each earlier step that may take long.

        Raises the errors of LibraryLoading.load.
        """
        order = dataclasses.replace(order, report=report)
        if order.source.home.is_shared:
            return await self._loading.load(order)
        async with self._pools.opened(order.name, order.source, report) as (pool, source):
            newest = self.catalog.newest_of(order.name)
            loaded = newest is not None and newest.source == source and newest.is_active
            if order.interpreters or not loaded:
                before = newest.interpreters_wanted if newest else 1
                count = max(order.interpreters or before, order.min_ready)
                await self._pools.provide(pool, count, report)
            place = dataclasses.replace(order.place, pool=pool)
            return await self._loading.load(dataclasses.replace(order, source=source, place=place))

    async def scale(
        self, name: str, interpreters: int, *, caller: Identity = OWNER
    ) -> LibraryVersion:
        """Set the number of interpreters that hold the active version of a library.

        Raises LibraryNotFoundError, PermissionDeniedError, WireError, or the reason why the version
        could not be loaded in one more interpreter.
        """
        if interpreters < 1:
            raise WireError(f"$.interpreters is {interpreters}; expected 1 or more")
        async with self.catalog.line(name):
            version = self.catalog.get_newest(name)
            check_version(caller, version)
            await self._journal.record_wanted(version, interpreters)
            version.failed_attempts = 0
            log_scaled(version)
            await self._pools.provide_for(version)
            failure = await self._replicas.fill_locked(version)
            self._replicas.shrink_locked(version)
            await self._replicas.see_off(version, DIRECT_CALLS_WAIT)
        if failure is not None:
            raise failure
        return version

    async def drain(self, interpreter: str, *, patience: float | None = None) -> InterpreterSession:
        """Move everything that an interpreter holds to others, as far as they can take it.

        Waits for its calls to end, for up to ``patience`` seconds. Raises InterpreterNotFoundError.
        """
        session = await self._draining.start(interpreter)
        await self._replicas.see_to(session, patience)
        return session

    async def end_drain(self, interpreter: str) -> InterpreterSession | None:
        """Put an interpreter back in use; return None if it is not connected at the moment.

        Raises InterpreterNotFoundError if it was not drained either.
        """
        session = await self._draining.end(interpreter)
        self._replicas.look_after_all()
        return session

    async def stop(self) -> None:
        """End the background tasks, and ignore interpreters from now on."""
        self._stopped = True
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- events of interpreters and versions ----------------------------------------------------

    async def _interpreter_left(self, session: InterpreterSession) -> None:
        if not self._stopped:
            await self._replicas.interpreter_left(session)
            await self.availability.announce()

    async def _interpreter_ended(self, name: str) -> None:
        """Record that an interpreter of a pool has ended for good."""
        if not self._stopped:  # otherwise the next daemon starts it again
            await self._draining.interpreter_ended(name)

    async def _give_up(self, version: LibraryVersion, error: OpdispatchError) -> None:
        """Leave a library listed with its error, until it is loaded or unloaded."""
        extra = about(Event.LIBRARY_FAILED, version)
        LOG.error("%s is given up: %s", version, error, extra=extra)
        version.state = VersionState.FAILED
        version.error = error.message
        self._pools.let_go(version)
        self.catalog.remember_gone(
            version.operators,
            f"library {version.name!r}, which had it, could not be loaded again: {error.message}",
        )
        await self.availability.announce()
        await self._health.library(version.name, serving=False)

    # -- inside ---------------------------------------------------------------------------------

    async def _published(self, version: LibraryVersion) -> None:
        self.catalog.forget_gone(version.operators)
        await self.availability.announce()
        await self._health.library(version.name, serving=version.is_serving)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        if self._stopped:
            task.cancel()  # cancellation frees an interpreter that others may wait for
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, OpdispatchError):  # callers receive OpdispatchErrors
            LOG.error(
                "a library was not tidied up", exc_info=error, extra=fields(Event.INTERNAL_ERROR)
            )
