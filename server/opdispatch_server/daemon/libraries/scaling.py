"""Keep each library in the wanted number of interpreters, also after deaths."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_server.daemon.board.health import HealthBoard
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.catalog import LibraryCatalog
from opdispatch_server.daemon.libraries.change_log import (
    about,
    count_change,
    log_replica_joined,
    log_restored,
)
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.journal_replay import restore_in_order
from opdispatch_server.daemon.libraries.placement import (
    BUSY_PATIENCE,
    INTERPRETER_WAIT,
    Place,
    Placement,
)
from opdispatch_server.daemon.libraries.publication import LibraryPublication, Recording
from opdispatch_server.daemon.libraries.replica import Replica, ReplicaState
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    InterpreterNotFoundError,
    LibraryNotFoundError,
)

LOG = logging.getLogger("opdispatch.libraries")

# A library whose import has brought three interpreters down is not given a fourth for a while.
RECOVERY_ATTEMPTS = 3
# Seconds before the first retry of a replica that could not be made, and of a library that was
# given up; the pause doubles with each attempt.
FIRST_PAUSE = 0.5
FIRST_REST = 30.0
LONGEST_REST = 3600.0


class LibraryReplicas:
    """Keeps every active version in the interpreters that it should be in.

    Methods whose names end in ``_locked`` are called with the name's line held.
    """

    def __init__(
        self,
        catalog: LibraryCatalog,
        publication: LibraryPublication,
        placement: Placement,
        pools: InterpreterPools,
        health: HealthBoard,
        blame: Blame,
        start: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        *,
        load_timeout: float,
        published: Callable[[LibraryVersion], Awaitable[None]],
        joined: Callable[[], Coroutine[Any, Any, None]],
        give_up: Callable[[LibraryVersion, OpdispatchError], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._publication = publication
        self._joining = publication.joining
        self._placement = placement
        self._pools = pools
        self._health = health
        self._blame = blame
        self._start = start
        self._load_timeout = load_timeout
        self._published = published
        self._joined = joined
        self._give_up = give_up
        # The libraries of the journal, until ``restore`` loads them in the right order.
        self.restoring: Sequence[LibraryVersion] = ()
        # Names that a task is about to check.
        self._cared_for: set[str] = set()
        self._demotions: dict[asyncio.Task[Any], Replica] = {}
        placement.on_freed = self.look_after_all

    # -- interpreters ---------------------------------------------------------------------------

    async def interpreter_joined(self, session: InterpreterSession) -> None:
        """Send a new interpreter all publications, and the libraries that lack an interpreter."""
        await self._joining.welcome(session, self._catalog.newest)
        ready = fields(Event.INTERPRETER_READY, interpreter=session.name)
        LOG.info("interpreter %s is ready (pid %d)", session.name, session.pid, extra=ready)
        await self._update_readiness()
        self._blame.note_joined(session.name, [each.name for each in self._pools.ready(None)])
        self._placement.note_change()
        self.look_after_all()

    async def interpreter_left(self, session: InterpreterSession) -> None:
        """Replace a replica whose interpreter has died; without replicas, the library waits."""
        async with self._publication.lock:
            lost = []
            for version in self._catalog.all_versions():
                was_primary = version.interpreter is session
                if not version.remove_replica(session):
                    continue
                if not version.replicas and version.is_active:
                    lost.append(version)
                elif was_primary and version.interpreter is not None:
                    primary = version.interpreter.name
                    extra = about(Event.PRIMARY_CHANGED, version, primary)
                    LOG.info("%s: %s is the primary now", version, primary, extra=extra)
                for replica in version.replicas:
                    if not any(r.is_serving for r in version.replicas):
                        self._joining.reclaim(replica)
            await self._publication.withdraw(lost, VersionState.WAITING)
            self._publication.routes.renew()  # existing routes may still name it
        level = logging.INFO if session.dismissed else logging.WARNING
        ended = fields(Event.INTERPRETER_ENDED, interpreter=session.name)
        LOG.log(level, "%s", session.death(), extra=ended)
        self._placement.forget(session)
        await self._update_readiness()
        for version in lost:
            await self._health.library(version.name, serving=False)
        self.look_after_all()

    async def _update_readiness(self) -> None:
        await self._health.interpreters(len(self._pools.ready(None)))

    # -- looking after ----------------------------------------------------------------------------

    def look_after_all(self) -> None:
        """Check every library that lacks interpreters, or is in one that is being drained."""
        # Harmful libraries last: they must not delay the others.
        newest = sorted(
            self._catalog.newest(),
            key=lambda version: (self._placement.is_apart(version), version.position),
        )
        for version in newest:
            if self._needs_care(version) and version.name not in self._cared_for:
                self._cared_for.add(version.name)
                self._start(self._look_after(version.name))

    def _needs_care(self, version: LibraryVersion) -> bool:
        if version.state is VersionState.WAITING:
            return bool(self._placement.find_spare(version)) and not self.restoring
        missing = self._missing(version)
        return missing < 0 or (
            missing > 0
            and time.monotonic() >= version.rests_until
            and any(not session.loading for session in self._placement.find_spare(version))
        )

    async def see_to(self, session: InterpreterSession, patience: float | None) -> None:
        """Move an interpreter's libraries to others, if it is being drained.

        Waits until others have imported them, and for its calls to end, for up to ``patience``
        seconds; continues in the background after that. Libraries that provide devices go first:
        others may only go where these are.
        """
        held = [v for v in self._catalog.all_versions() if v.find_replica(session)]
        bringing = {version.name for version in held if version.batch.device_types}
        others = {version.name for version in held} - bringing
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for names in (bringing, others):
                    moving = [self._start(self._look_after(name)) for name in sorted(names)]
                    await asyncio.gather(*map(shielded, moving))
                leaving = [t for t, left in self._demotions.items() if left.session is session]
                if leaving:
                    await asyncio.wait(leaving)

    async def see_off(self, version: LibraryVersion, patience: float) -> None:
        """Wait, for up to ``patience`` seconds, for the replicas that are leaving a version."""
        leaving = [task for task, left in self._demotions.items() if left in version.replicas]
        if leaving:
            await asyncio.wait(leaving, timeout=patience)

    async def _look_after(self, name: str) -> None:
        async with self._catalog.line(name):
            # Whatever happens from here on needs another check.
            self._cared_for.discard(name)
            version = self._catalog.newest_of(name)
            if version is None:
                return
            if version.state is VersionState.WAITING:
                await self._recover_locked(version)
            if version.is_active and time.monotonic() >= version.rests_until:
                await self.fill_locked(version, patience=0.0)
            self.shrink_locked(version)
            self.leave_drained_locked(name)

    async def restore(self) -> None:
        """Load the libraries of the journal that load, as far as there are interpreters."""
        await restore_in_order(self.restoring, self._restore_one)
        await asyncio.gather(*(self._fill(version) for version in self.restoring))
        self.restoring = ()
        self.look_after_all()

    async def _restore_one(self, version: LibraryVersion, last_try: bool) -> bool:
        async with self._catalog.line(version.name):
            can_be = self._pools.ready(None) or not version.source.home.is_shared
            if version.state is VersionState.WAITING and can_be:
                await self._recover_locked(version, last_try=last_try)
        return version.state is not VersionState.WAITING

    async def _fill(self, version: LibraryVersion) -> None:
        async with self._catalog.line(version.name):
            await self.fill_locked(version)

    async def _recover_locked(self, version: LibraryVersion, *, last_try: bool = True) -> None:
        """Reload, from the store, a library that has lost its last interpreter.

        If it does not load, it is given up, unless this is not the ``last_try``.
        """
        version.start_over(self._catalog.new_load_id())
        try:
            await self.bring_up_locked(version, None)
        except InterpreterNotFoundError:
            return  # the next interpreter that joins triggers another try
        except (InterpreterDiedError, DeadlineExceededError) as error:
            count_change(Event.LIBRARY_LOAD_FAILED)
            extra = about(Event.LIBRARY_LOAD_FAILED, version)
            LOG.error("%s could not be loaded again: %s", version, error, extra=extra)
            if "suspect" not in error.facts:
                return  # a concurrent change cut its import off
            version.failed_attempts += 1
            if version.failed_attempts >= RECOVERY_ATTEMPTS:
                await self._give_up_for_now(version, error)
            return
        except OpdispatchError as error:
            if last_try:
                await self._give_up_for_now(version, error)
            else:
                extra = about(Event.LIBRARY_LOAD_FAILED, version)
                LOG.info("%s will be tried again, after others: %s", version, error, extra=extra)
            return
        version.failed_attempts = 0
        log_restored(version)
        await self._published(version)

    async def _give_up_for_now(self, version: LibraryVersion, error: OpdispatchError) -> None:
        """Leave a library listed with its error, and retry after a pause."""
        await self._give_up(version, error)
        rest = min(FIRST_REST * 2.0 ** min(version.times_given_up, 10), LONGEST_REST)
        version.times_given_up += 1
        asyncio.get_running_loop().call_later(rest, self._try_again, version)

    def _try_again(self, version: LibraryVersion) -> None:
        is_newest = self._catalog.newest_of(version.name) is version
        if is_newest and version.state is VersionState.FAILED:
            version.state = VersionState.WAITING
            version.failed_attempts = RECOVERY_ATTEMPTS - 1
            self.look_after_all()

    async def bring_up_locked(
        self,
        version: LibraryVersion,
        replaced: LibraryVersion | None,
        recording: Recording = nullcontext,
        patience: float = 0.0,
    ) -> None:
        """Load a version that no interpreter holds, in place of ``replaced``.

        ``recording`` as in LibraryPublication.publish, ``patience`` as in Placement.claim. Raises
        the errors of LibraryLoading.load.
        """
        await self._pools.provide_for(version)
        session = await self._placement.claim(
            Place(device=version.device, pool=version.pool), version.name, patience
        )
        try:
            batch = await self._publication.staging.stage(
                version, session, replaced, timeout=self._load_timeout
            )
            await self._publication.publish(
                version,
                session,
                batch,
                replaced,
                recording=recording,
                published_after=lambda: self._published_after(version),
            )
        finally:
            self._placement.release(session)

    async def bring_back_locked(
        self, version: LibraryVersion, top: LibraryVersion, recording: Recording
    ) -> None:
        """Publish a kept version in place of the one above it, in as many interpreters.

        ``recording`` as in LibraryPublication.publish. Raises the errors of LibraryLoading.load,
        and then nothing has changed.
        """
        wanted, version.interpreters_wanted = version.interpreters_wanted, top.interpreters_wanted
        try:
            await self._pools.provide_for(version)
            session = await self._placement.claim_holder(version)
            if session is not None:
                try:
                    await self._publication.bring_back(version, session, top, recording)
                    return
                except LibraryNotFoundError:
                    pass  # its last call has ended meanwhile, and its code was released with it
                finally:
                    self._placement.release(session)
            version.start_over(self._catalog.new_load_id())
            await self.bring_up_locked(version, top, recording, INTERPRETER_WAIT)
        except BaseException:
            version.interpreters_wanted = wanted
            raise

    def _published_after(self, version: LibraryVersion) -> list[LibraryVersion]:
        """Return the active versions whose kernels take precedence over its own, in order."""
        newest = sorted(self._catalog.newest(), key=lambda version: version.position)
        return [
            each
            for each in newest
            if each.is_active
            and each.position > version.position
            and each.shares_names_with(version)
        ]

    # -- more and fewer ---------------------------------------------------------------------------

    def _missing(self, version: LibraryVersion) -> int:
        return version.interpreters_wanted - len(self._staying(version))

    def _staying(self, version: LibraryVersion) -> list[Replica]:
        return [
            replica
            for replica in version.replicas
            if replica.state is not ReplicaState.LEAVING
            and (replica.session.is_fit or version.name in replica.session.busy_with)
            and self._placement.belongs(version, replica.session)
        ]

    async def fill_locked(
        self, version: LibraryVersion, patience: float = BUSY_PATIENCE
    ) -> OpdispatchError | None:
        """Add interpreters to an active version, as far as there are any.

        Those that are importing something else are waited for, up to ``patience`` seconds. A
        failure does not stop the others; the first error is returned.
        """
        async with version.filling:
            for replica in version.replicas:
                if self._missing(version) > 0 and self._placement.belongs(version, replica.session):
                    self._joining.reclaim(replica)
            missing = self._missing(version)
            if missing <= 0 or not version.is_active:
                return None
            failures = await asyncio.gather(
                *(self._add_replica(version, patience) for _ in range(missing))
            )
        return next((failure for failure in failures if failure is not None), None)

    async def _add_replica(
        self, version: LibraryVersion, patience: float
    ) -> OpdispatchError | None:
        session = await self._placement.claim_spare(version, patience)
        if session is None:
            return None
        try:
            batch = await self._publication.staging.stage(
                version, session, None, timeout=self._load_timeout
            )
            if not version.is_active:  # its last interpreter has died meanwhile
                await self._publication.staging.abandon(version, session)
                return None
            await self._joining.join(version, session, batch)
        except OpdispatchError as error:
            extra = about(Event.REPLICA_FAILED, version, session.name)
            LOG.warning(
                "%s could not be given to %s: %s", version, session.name, error, extra=extra
            )
            if not isinstance(error, InterpreterDiedError) or "suspect" in error.facts:
                self._rest(version)
            return error
        finally:
            self._placement.release(session)
        version.failed_attempts = 0
        await self._joined()  # the others may have died meanwhile: then calls wait for this one
        log_replica_joined(version, session.name)
        return None

    def _rest(self, version: LibraryVersion) -> None:
        """Pause attempts to make replicas of a version; the pause doubles with each failure."""
        version.failed_attempts += 1
        pause = min(FIRST_PAUSE * 2.0 ** min(version.failed_attempts, 10), FIRST_REST)
        loop = asyncio.get_running_loop()
        version.rests_until = time.monotonic() + pause
        loop.call_later(pause, self.look_after_all)

    def blame_changed(self) -> None:
        """Update replicas after a change in which libraries, or interpreters, count as harmful."""
        for version in self._catalog.all_versions():
            for replica in version.replicas:
                replica.is_barred = self._placement.is_apart(
                    version
                ) and not self._placement.belongs(version, replica.session)
        self._publication.routes.renew()
        self.fitness_changed()

    def fitness_changed(self) -> None:
        """Update replicas after interpreters became able or unable to serve calls."""
        self._placement.note_change()
        self.look_after_all()
        self._start(self._joined())

    def shrink_locked(self, version: LibraryVersion) -> None:
        """Remove a version from surplus interpreters, the last ones first."""
        for replica in reversed(self._staying(version)):
            if self._missing(version) < 0 and replica.state is ReplicaState.SERVING:
                self.let_go(version, replica)

    def leave_drained_locked(self, name: str) -> None:
        """Remove a library from interpreters that it should not be in, if others have it."""
        for version in self._catalog.versions_of(name):
            others = any(replica.is_serving for replica in self._staying(version))
            for replica in list(version.replicas):
                if not self._placement.belongs(version, replica.session) and (
                    others or version.state is VersionState.KEPT
                ):
                    self.let_go(version, replica)

    def let_go(self, version: LibraryVersion, replica: Replica) -> None:
        """Send a replica no more calls; release its code when it has finished those it has."""
        if replica.state is not ReplicaState.LEAVING:
            replica.state = ReplicaState.LEAVING
            self._publication.routes.renew()
            task = self._start(self._demote_when_idle(version, replica, version.load_id))
            self._demotions[task] = replica
            task.add_done_callback(self._demotions.pop)

    async def _demote_when_idle(
        self, version: LibraryVersion, replica: Replica, load_id: int
    ) -> None:
        await replica.wait_idle()
        await replica.session.wait_for_direct_calls(load_id)
        if (
            replica.state is ReplicaState.LEAVING
            and replica in version.replicas
            and version.load_id == load_id
        ):
            await self._joining.demote(version, replica)
            self._pools.shrink(version.pool, self._catalog.all_versions())
