"""The daemon's libraries: names, versions, where they are, and what happens when one goes."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from opdispatch.errors import DuplicateDefinitionError, OpdispatchError
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.health import HealthBoard
from opdispatch_server.interpreter_sessions import InterpreterSession, InterpreterSessions
from opdispatch_server.journal_record import LibraryRecord
from opdispatch_server.library_journal import LibraryJournal, version_from_record
from opdispatch_server.library_restoration import restore_in_order
from opdispatch_server.library_transaction import LibraryTransaction
from opdispatch_server.library_version import LibrarySource, LibraryVersion, VersionState
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    InterpreterNotFoundError,
    LibraryNotFoundError,
)

LOG = logging.getLogger("opdispatch.libraries")

# A library that brings its interpreter down is not given a fourth one.
RECOVERY_ATTEMPTS = 3
# How many operators that are gone are remembered, for the sake of messages.
GONE_REMEMBERED = 10_000


class LibraryRegistry:
    """Loads, replaces and unloads libraries, and brings back those that lose their interpreter.

    ``_change`` serialises loads and unloads: an import may hold it for as long as it takes.
    An interpreter's death must not wait for that, so it takes the transaction's ``publication``
    alone, which is held for moments.
    """

    def __init__(
        self,
        transaction: LibraryTransaction,
        sessions: InterpreterSessions,
        health: HealthBoard,
        load_timeout: float,
        interpreter_wait: float,
        journal: LibraryJournal,
    ) -> None:
        self._transaction = transaction
        self._sessions = sessions
        self._health = health
        self._load_timeout = load_timeout
        self._interpreter_wait = interpreter_wait
        self._journal = journal
        # Of each name, oldest first. The last one is active or waits for an interpreter.
        self._versions: dict[str, list[LibraryVersion]] = {}
        self._last_version: dict[str, int] = {}
        self._load_ids = itertools.count(1)
        self._change = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        # Those of them that wait for the last calls of unloaded versions.
        self._leaving: set[asyncio.Task[None]] = set()
        # What has become of operators, for the message when one of them is called.
        self._gone: dict[str, str] = {}
        self._stopped = False
        # While the libraries of the journal are brought back, in their own order.
        self._restoring = False
        sessions.on_joined = self._interpreter_joined
        sessions.on_left = self._interpreter_left

    @property
    def publication(self) -> asyncio.Lock:
        """Held while the dispatcher and the state of the libraries change together."""
        return self._transaction.publication

    # -- looking --------------------------------------------------------------------------------

    def all_versions(self) -> list[LibraryVersion]:
        """Every version that is kept, in order of name, then version."""
        return [version for name in sorted(self._versions) for version in self._versions[name]]

    def newest(self) -> list[LibraryVersion]:
        """Of each library, the version that is active, or will be when it has an interpreter."""
        return [self._versions[name][-1] for name in sorted(self._versions)]

    def explain_absence(self, operator: str) -> str:
        """What has become of an operator that is not there any more; "" if nobody knows."""
        return self._gone.get(operator, "")

    def find_waiting(self, operator: str) -> LibraryVersion | None:
        """The version that has the operator, and waits for an interpreter."""
        for version in self.newest():
            if version.state is VersionState.WAITING and any(
                operator in (name, name.partition(".")[0]) for name in version.operators
            ):
                return version
        return None

    # -- restoring ------------------------------------------------------------------------------

    async def adopt(self, record: LibraryRecord) -> None:
        """Takes over a library of the journal: it waits for an interpreter from now on."""
        self._restoring = True
        name = record.name
        self._last_version[name] = record.last_version
        versions = [version_from_record(name, v, next(self._load_ids)) for v in record.versions]
        versions.sort(key=lambda version: (version.version == record.active, version.version))
        if versions:
            for version in versions:
                version.state = VersionState.KEPT
            versions[-1].state = VersionState.WAITING
            self._versions[name] = versions
            await self._health.library(name, serving=False)

    async def restore(self, timeout: float) -> bool:
        """Loads what was adopted; False if that takes longer, and goes on in the background."""
        waiting = [
            self._versions[name][-1]
            for name in self._versions  # as they were adopted
            if self._versions[name][-1].state is VersionState.WAITING
        ]
        restoring = self._start(self._restore(waiting))
        done, _ = await asyncio.wait({restoring}, timeout=timeout)
        return bool(done)

    async def _restore(self, versions: Sequence[LibraryVersion]) -> None:
        await restore_in_order(versions, self._recover_one)
        self._restoring = False
        await self._recover()

    async def _recover_one(self, version: LibraryVersion, last_try: bool) -> bool:
        async with self._change:
            if version.state is VersionState.WAITING:
                await self._recover_version(version, last_try=last_try)
            return version.state is not VersionState.WAITING

    # -- changes --------------------------------------------------------------------------------

    async def load(
        self,
        name: str,
        source: LibrarySource,
        content: bytes | None = None,
        *,
        interpreter: str = "",
        still_wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[LibraryVersion, bool]:
        """Loads a library; the version, and whether it was loaded already.

        ``content`` is the upload. ``still_wanted`` is asked before anything is published.

        Raises as LibraryTransaction.bring_up does, and InterpreterNotFoundError.
        """
        if not interpreter:
            await self._sessions.wait_for_ready(1, self._interpreter_wait)
        async with self._change:
            if not still_wanted():
                raise DeadlineExceededError(f"nobody waits for {name} any more")
            replaced = self._newest_of(name)
            same = replaced is not None and source.sha256 and source == replaced.source
            if same and replaced is not None and replaced.is_active:
                return replaced, True
            session = self._place(interpreter)
            if same and replaced is not None:  # it waits, or has failed: tried again
                replaced.content = content
                replaced.load_id = next(self._load_ids)
                await self._transaction.bring_up(
                    replaced, session, None, timeout=self._load_timeout, still_wanted=still_wanted
                )
                await self._published(replaced)
                return replaced, False
            number = self._last_version.get(name, 0) + 1
            version = LibraryVersion(name, number, next(self._load_ids), source, content)
            kept = [replaced] if replaced is not None else []
            bring_up = functools.partial(
                self._transaction.bring_up,
                version,
                session,
                replaced,
                timeout=self._load_timeout,
                still_wanted=still_wanted,
                recording=lambda: self._record_load(version, kept),
                on_published=lambda: self._versions.setdefault(name, []).append(version),
            )
            try:
                await bring_up()
            except DuplicateDefinitionError:
                # Perhaps by a library that is unloaded already, but has calls to finish.
                if not await self._wait_for_leaving():
                    raise
                await bring_up()
            self._last_version[name] = number
            if replaced is not None:
                self._supersede(replaced)
        await self._published(version)
        return version, False

    async def unload(self, name: str, number: int) -> LibraryVersion | None:
        """Unloads one version, or with 0 all of them; the version that is active then.

        Raises LibraryNotFoundError; and, if the version below cannot be brought back, why: then
        nothing has changed.
        """
        async with self._change:
            versions = self._versions.get(name, [])
            gone = [v for v in versions if number in (0, v.version)]
            if not gone:
                raise self._not_found(name, number)
            below = [version for version in versions if version not in gone]
            top = versions[-1]
            async with self._recording("unload", gone[-1], below):
                if below and top in gone:
                    await self._bring_back(below[-1], top)
                self._remember_gone(
                    {operator for version in gone for operator in version.operators}
                    - set(below[-1].operators if below else ()),
                    f"library {name!r}, which had it, was unloaded",
                )
                async with self._transaction.publication:
                    await self._transaction.withdraw(gone, VersionState.GONE)
                fault_point(FaultPoint.WITHDRAWN)
            self._versions[name] = below
            if not below:
                del self._versions[name]
            await self._release(gone)
        await self._health.library(name, serving=below[-1].is_active if below else None)
        for version in gone:
            LOG.info("unloaded %s", version)
        return below[-1] if below else None

    def _record_load(
        self, version: LibraryVersion, kept: Sequence[LibraryVersion]
    ) -> AbstractAsyncContextManager[None]:
        version.loaded_at = datetime.now(UTC)
        return self._recording("load", version, [*kept, version])

    def _recording(
        self, event: str, version: LibraryVersion, left: Sequence[LibraryVersion]
    ) -> AbstractAsyncContextManager[None]:
        """The journal's part of a change after which ``left`` are there, the last one active."""
        last_version = max(self._last_version.get(version.name, 0), version.version)
        return self._journal.changing(
            f"{event} v{version.version}", version.name, last_version, left
        )

    async def stop(self) -> None:
        """Ends what runs in the background, and takes no notice of interpreters any more."""
        self._stopped = True
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _bring_back(self, version: LibraryVersion, top: LibraryVersion) -> None:
        session = version.interpreter
        if session is not None and session.alive and top.is_active:
            await self._transaction.bring_back(version, session, top)
        else:
            version.load_id = next(self._load_ids)
            await self._transaction.bring_up(
                version, self._place(""), top, timeout=self._load_timeout
            )

    def _supersede(self, replaced: LibraryVersion) -> None:
        """Only the newest version below the active one is kept; older ones go."""
        versions = self._versions[replaced.name]
        for version in versions[:-2]:
            version.state = VersionState.GONE
            self._start(self._retire_when_idle(version, keep=False))
        self._versions[replaced.name] = versions[-2:]
        self._start(self._retire_when_idle(replaced, keep=True))

    async def _release(self, versions: list[LibraryVersion]) -> None:
        """Lets unloaded versions go: now, or when their calls have finished.

        All together: kernels of an older version may call operators of the newer one.
        """
        if any(version.calls_in_flight for version in versions):
            self._leaving.add(self._start(self._retire_all_when_idle(versions)))
        else:
            await self._retire_all_when_idle(versions)

    async def _retire_all_when_idle(self, versions: list[LibraryVersion]) -> None:
        for version in versions:
            await version.wait_idle()
        await asyncio.gather(*(self._transaction.retire(v, keep=False) for v in versions))

    async def _wait_for_leaving(self) -> bool:
        """Waits until what was unloaded is gone; whether there was anything."""
        leaving = [task for task in self._leaving if not task.done()]
        if leaving:
            await asyncio.wait(leaving, timeout=self._load_timeout)
        return bool(leaving)

    async def _retire_when_idle(self, version: LibraryVersion, *, keep: bool) -> None:
        load_id = version.load_id
        await version.wait_idle()
        # It may have been brought back while it was busy, and need no retiring any more.
        if load_id == version.load_id and not version.is_active:
            await self._transaction.retire(version, keep=keep)

    # -- interpreters ---------------------------------------------------------------------------

    def _place(self, interpreter: str) -> InterpreterSession:
        """The interpreter of that name, or else the one with the fewest libraries."""
        if interpreter:
            return self._sessions.get_ready(interpreter)
        ready = self._sessions.ready()
        if not ready:
            raise InterpreterNotFoundError(
                "no interpreter is connected that could hold a library",
                hint="start one with `opdispatch worker`, or the daemon with --workers 1 or more",
            )
        held = [version.interpreter for version in self.all_versions()]
        return min(ready, key=held.count)

    async def _interpreter_joined(self, session: InterpreterSession) -> None:
        async with self._change:
            active = [version for version in self.newest() if version.is_active]
            for version in sorted(active, key=lambda version: version.epoch):
                if version.is_active:  # its interpreter may have died since
                    await self._transaction.mirror_to(session, version, None)
            session.ready = session.alive
        LOG.info("interpreter %s is ready (pid %d)", session.name, session.pid)
        await self._update_readiness()
        self._start(self._recover())

    async def _interpreter_left(self, session: InterpreterSession) -> None:
        if self._stopped:
            return
        async with self._transaction.publication:
            held = [v for v in self.all_versions() if v.interpreter is session]
            active = [version for version in held if version.is_active]
            await self._transaction.withdraw(active, VersionState.WAITING)
            for version in held:
                version.interpreter = None
        LOG.warning("%s", session.death())
        await self._update_readiness()
        for version in active:
            await self._health.library(version.name, serving=False)
        await asyncio.gather(*(self._transaction.retire(v, keep=False) for v in active))
        self._start(self._recover())

    async def _update_readiness(self) -> None:
        await self._health.interpreters(len(self._sessions.ready()))

    async def _recover(self) -> None:
        """Loads again, from the store, what has lost its interpreter."""
        if self._restoring:
            return
        async with self._change:
            for version in self.newest():
                if version.state is VersionState.WAITING and self._sessions.ready():
                    await self._recover_version(version)

    async def _recover_version(self, version: LibraryVersion, *, last_try: bool = True) -> None:
        version.load_id = next(self._load_ids)
        try:
            session = self._place("")
            await self._transaction.bring_up(version, session, None, timeout=self._load_timeout)
        except InterpreterNotFoundError:
            return  # the next one that joins tries again
        except (InterpreterDiedError, DeadlineExceededError) as error:
            version.failed_attempts += 1
            LOG.error("%s could not be loaded again: %s", version, error)
            if version.failed_attempts >= RECOVERY_ATTEMPTS:
                await self._give_up(version, error)
            return
        except OpdispatchError as error:
            if last_try:
                await self._give_up(version, error)
            else:
                LOG.info("%s will be tried again, after others: %s", version, error)
            return
        await self._published(version)

    async def _give_up(self, version: LibraryVersion, error: OpdispatchError) -> None:
        """Leaves a library listed with its error, until somebody loads or unloads it."""
        LOG.error("%s is given up: %s", version, error)
        version.state = VersionState.FAILED
        version.error = error.message
        self._remember_gone(
            version.operators,
            f"library {version.name!r}, which had it, could not be loaded again: {error.message}",
        )
        await self._health.library(version.name, serving=False)

    # -- plumbing -------------------------------------------------------------------------------

    async def _published(self, version: LibraryVersion) -> None:
        for operator in version.operators:
            self._gone.pop(operator, None)
            self._gone.pop(operator.partition(".")[0], None)
        interpreter = version.interpreter
        LOG.info("loaded %s into interpreter %s", version, interpreter and interpreter.name)
        await self._health.library(version.name, serving=version.is_active)

    def _newest_of(self, name: str) -> LibraryVersion | None:
        versions = self._versions.get(name)
        return versions[-1] if versions else None

    def _remember_gone(self, operators: Iterable[str], what: str) -> None:
        for operator in operators:
            # Callers may leave the overload's name out.
            self._gone[operator] = self._gone[operator.partition(".")[0]] = what
        while len(self._gone) > GONE_REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _not_found(self, name: str, number: int) -> LibraryNotFoundError:
        versions = ", ".join(str(version.version) for version in self._versions.get(name, []))
        if versions:
            return LibraryNotFoundError(
                f"library {name!r} has no version {number}; kept: {versions}", library=name
            )
        loaded = ", ".join(sorted(self._versions)) or "none"
        return LibraryNotFoundError(
            f"no library named {name!r} is loaded; loaded: {loaded}", library=name
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("a library was not tidied up", exc_info=error)
