"""Loading a library, in any number of interpreters, by any number of concurrent requests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opdispatch.errors import DuplicateDefinitionError, OpdispatchError, WaitTimeoutError
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.daemon.environments.build import Report
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.catalog import LibraryCatalog
from opdispatch_server.daemon.libraries.change_log import log_loaded, log_replica_joined
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.journaled_changes import LibraryJournal
from opdispatch_server.daemon.libraries.load_race import LoadRace, LoadWait
from opdispatch_server.daemon.libraries.permissions import check_version
from opdispatch_server.daemon.libraries.placement import (
    BUSY_PATIENCE,
    INTERPRETER_WAIT,
    Place,
    Placement,
)
from opdispatch_server.daemon.libraries.publication import LibraryPublication
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_wire.errors import DeadlineExceededError


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """An order to load a library: its source and where it goes."""

    name: str
    source: LibrarySource
    place: Place = field(default_factory=Place)
    interpreters: int = 0
    """How many interpreters are to hold it; 0: as many as the previous version, else one."""
    min_ready: int = 0
    """How many interpreters must have imported it before it is published.

    0: as many as serve the previous version, or as many of them as are available.
    """
    loaded_by: str = ""
    report: Report = lambda line: None
    """Called before each step that may take long."""
    caller: Identity = OWNER
    """The client's identity; it must be allowed to register the library's operators."""
    patience: float | None = None
    """How long the caller waits for the outcome, in seconds; None: without limit."""


class LoadOutcome(NamedTuple):
    """The version that was loaded, and this load's part in it."""

    version: LibraryVersion
    role: str = ""
    """"primary" or "replica": the role of the interpreter that was named, or that imported it."""
    already_loaded: bool = False
    """Whether this load had nothing to import."""


class LibraryLoading:
    """Runs load races; see LoadRace. ``start`` runs a coroutine in the background."""

    def __init__(
        self,
        catalog: LibraryCatalog,
        publication: LibraryPublication,
        placement: Placement,
        pools: InterpreterPools,
        start: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        journal: LibraryJournal,
        *,
        load_timeout: float,
        fill: Callable[[LibraryVersion], Awaitable[OpdispatchError | None]],
        supersede: Callable[[LibraryVersion, list[LibraryVersion]], None],
        published: Callable[[LibraryVersion], Awaitable[None]],
        leaving: Callable[[], list[asyncio.Task[Any]]],
    ) -> None:
        self._catalog = catalog
        self._publication = publication
        self._joining = publication.joining
        self._placement = placement
        self._pools = pools
        self._start = start
        self._journal = journal
        self._load_timeout = load_timeout
        self._fill = fill
        self._supersede = supersede
        self._published = published
        # Tasks that wait for the last calls of unloaded versions.
        self._leaving = leaving
        # Held while a load claims several interpreters: two loads that hold some each would
        # deadlock.
        self._claiming = asyncio.Lock()
        # By name, the race that the next load of the same content joins.
        self._last_race: dict[str, LoadRace] = {}

    async def load(self, order: LoadOrder) -> LoadOutcome:
        """Load a library, or have an interpreter join those that hold it.

        Raises what the import raised, the RegistrationError of a registration that conflicts,
        LibraryLoadError, InterpreterNotFoundError, RefusedError, InterpreterDiedError,
        DeadlineExceededError if the import takes too long, and WaitTimeoutError if another load's
        import does.
        """
        before = self._last_race.get(order.name)
        race = self._enter_race(order)
        wait = LoadWait(f"an earlier load of {order.name!r}")
        if before is not None and before is not race:
            wait.set(lambda: f"the load of {before.source.label} before it{_by(before)}")
        try:
            async with asyncio.timeout(order.patience):
                return await self._take_part(race, order, wait)
        except OpdispatchError:
            raise  # before TimeoutError, of which some of these are subclasses
        except TimeoutError as error:
            raise _out_of_time(order, wait) from error
        finally:
            race.leave()

    def _enter_race(self, order: LoadOrder) -> LoadRace:
        """Return the race that the load belongs to, after earlier loads of other content."""
        race = self._last_race.get(order.name)
        if (
            race is None
            or race.ended.is_set()
            or race.source != order.source
            or not order.source.sha256
        ):
            race = LoadRace(order.name, order.source, order.place.pool)
            self._last_race[order.name] = race
            self._start(self._hold_line(race))
        race.enter()
        return race

    async def _hold_line(self, race: LoadRace) -> None:
        try:
            async with self._catalog.line(race.name):
                if race.ended.is_set():
                    return  # all members gave up, and the race no longer holds its pool open
                self._open(race)
                await race.ended.wait()
                # The interpreters that could be claimed failed to import it.
                if race.version.state in (VersionState.LOADING, VersionState.FAILED):
                    self._pools.let_go(race.version)
        finally:
            if self._last_race.get(race.name) is race:
                del self._last_race[race.name]

    def _open(self, race: LoadRace) -> None:
        """Open the race for the newest version if that has its content, else for a new version."""
        newest = self._catalog.newest_of(race.name)
        if newest is None or newest.source != race.source or not race.source.sha256:
            race.open(self._new_version(race, newest), newest)
            return
        if not newest.is_active and newest.pool is None:
            self._pools.hold(newest, race.pool)
        race.open(newest, None)

    def _new_version(self, race: LoadRace, newest: LibraryVersion | None) -> LibraryVersion:
        number = self._catalog.next_version(race.name)
        load_id = self._catalog.new_load_id()
        version = LibraryVersion(race.name, number, load_id, race.source)
        version.interpreters_wanted = newest.interpreters_wanted if newest else 1
        version.device = newest.device if newest else ""
        self._pools.hold(version, race.pool)
        return version

    async def _take_part(self, race: LoadRace, order: LoadOrder, wait: LoadWait) -> LoadOutcome:
        await race.opened.wait()
        version = race.version
        for each in filter(None, (race.replaced, version)):
            check_version(order.caller, each)
        outcome = await self._bring_in(race, order, wait)
        check_version(order.caller, version)  # other callers may have published meanwhile
        published = outcome.role == "primary" and not outcome.already_loaded
        if order.interpreters > version.interpreters_wanted or (order.interpreters and published):
            await self._journal.record_wanted(version, order.interpreters)
            version.failed_attempts = 0
        if order.interpreters or published:
            wait.set(lambda: f"more interpreters to hold {version}")
            await self._fill(version)
        if order.place.interpreter:
            await self._journal.record_wanted(version, version.count_wanted_or_held())
        return outcome

    async def _bring_in(self, race: LoadRace, order: LoadOrder, wait: LoadWait) -> LoadOutcome:
        name = order.place.interpreter
        if name and not self._placement.is_coming(name):
            session = self._placement.get(name)
            if race.version.is_active and self._joining.stays_in(race.version, session):
                return _already(race.version, session)
        elif not name:
            wait.set(lambda: f"{race.version} from {race.describe_imports() or 'no interpreter'}")
            if await race.wait_for_decision():
                return LoadOutcome(race.version, already_loaded=True)
        return await self._import(race, order, wait)

    async def _import(self, race: LoadRace, order: LoadOrder, wait: LoadWait) -> LoadOutcome:
        race.begin_import()
        place = order.place
        which = f"interpreter {place.interpreter}" if place.interpreter else "an interpreter"

        def describe() -> str:
            if self._placement.is_short_of(place, race.version.name):
                return f"{which}, which is not ready yet"
            return f"{which} that is importing something else{_by(race)}"

        wait.set(describe)
        try:
            session, *others = await self._claim(race, order, wait)
        except BaseException:
            race.end_import()
            raise
        if race.version.is_active and self._joining.stays_in(race.version, session):
            for each in (session, *others):  # another member has imported it here meanwhile
                self._placement.release(each)
            race.end_import()
            return _already(race.version, session)
        wait.importing = session
        race.note_import(session)
        race.enter()
        # An import that has begun is completed even if it is no longer awaited; then it publishes
        # nothing.
        wanted = _Wanted()
        task = self._start(self._import_into(race, session, others, order, wanted))
        try:
            role = await shielded(task)
        except asyncio.CancelledError:
            wanted.no_more()
            raise
        return LoadOutcome(race.version, role)

    async def _claim(
        self, race: LoadRace, order: LoadOrder, wait: LoadWait
    ) -> list[InterpreterSession]:
        """Wait for the interpreters that are to import a version before it is published.

        The first is the one that the order asks for. Without ``min_ready`` there may be fewer than
        serve the previous version: busy interpreters are waited for as long as for any replica.
        """
        version = race.version
        count = count_to_be_ready(version, race.replaced, order)
        if count == 1:
            return [await self._placement.claim(order.place, version.name, INTERPRETER_WAIT)]
        device, version.device = version.device, order.place.device or version.device
        claimed: list[InterpreterSession] = []
        async with self._claiming:
            try:
                claimed.append(
                    await self._placement.claim(order.place, version.name, INTERPRETER_WAIT)
                )
                wait.set(
                    lambda: (
                        f"{count} interpreters that can import {version}, of which there are "
                        f"{len(claimed)}"
                    )
                )
                while len(claimed) < count and not version.is_active:
                    if session := await self._placement.claim_spare(version, BUSY_PATIENCE):
                        claimed.append(session)
                    elif not order.min_ready:
                        break
                    else:
                        await self._placement.wait_for_change()
            except BaseException:
                version.device = device
                for session in claimed:
                    self._placement.release(session)
                raise
        return claimed

    async def _import_into(
        self,
        race: LoadRace,
        session: InterpreterSession,
        others: list[InterpreterSession],
        order: LoadOrder,
        wanted: _Wanted,
    ) -> str:
        """Import the library for one member of the race; return the member's role."""
        leaving = self._leaving()
        try:
            try:
                return await self._attempt(race, session, others, order, wanted)
            except DuplicateDefinitionError as error:
                # Perhaps registered by a library that is unloaded already but had calls to finish.
                if not leaving:
                    self._say_how_to_replace(error, order.name)
                    raise
                await asyncio.wait(leaving, timeout=self._load_timeout)
                return await self._attempt(race, session, others, order, wanted)
        finally:
            for each in (session, *others):
                self._placement.release(each)
            race.end_import(session)
            race.leave()

    def _say_how_to_replace(self, error: DuplicateDefinitionError, name: str) -> None:
        """Add to a load's error under ``name`` a hint about the library that it conflicts with."""
        facts = error.facts
        other = self._catalog.definer_of(
            operator=facts.get("operator", ""), namespace=facts.get("namespace", "")
        )
        if not other or other == name:
            return
        error.hint = (
            f"that is library {other!r}: load this one as {other!r}, --name {other}, to replace "
            "it, or unload it first"
        )
        if "namespace" in facts:
            error.hint += "; a FRAGMENT library can add operators to its namespace"

    async def _attempt(
        self,
        race: LoadRace,
        session: InterpreterSession,
        others: Sequence[InterpreterSession],
        order: LoadOrder,
        wanted: _Wanted,
    ) -> str:
        version = race.version
        batch = await self._publication.staging.stage(
            version, session, race.replaced, timeout=self._load_timeout, report=order.report
        )
        # After the first: an import that ends its interpreter does not then end all of them.
        staged = await self._publication.staging.stage_others(
            version,
            session,
            others,
            race.replaced,
            timeout=self._load_timeout,
            needs_all=bool(order.min_ready),
        )
        async with race.turn:
            replaced = race.replaced
            if not wanted():
                await self._publication.staging.abandon(version, session, *staged)
                raise DeadlineExceededError(f"no caller waits for {version} any more")
            if version.is_active:
                check_version(order.caller, version)
                for each, its in {session: batch, **staged}.items():
                    await self._joining.join(version, each, its)
                    log_replica_joined(version, each.name)
                return "replica"
            version.loaded_by = order.loaded_by
            version.device = order.place.device or version.device
            wanted_in = order.interpreters or version.interpreters_wanted
            version.interpreters_wanted = max(wanted_in, order.min_ready)
            too_old: list[LibraryVersion] = []
            await self._publication.publish(
                version,
                session,
                batch,
                replaced,
                others=staged,
                still_wanted=wanted,
                permit=functools.partial(check_version, order.caller),
                recording=lambda: self._journal.loading(version, replaced),
                on_published=lambda: too_old.extend(self._catalog.add(version)),
            )
            version.failed_attempts = 0
            if replaced is not None:
                self._supersede(replaced, too_old)
                race.replaced = None
        log_loaded(version, replaced)
        await self._published(version)
        return "primary"


def count_to_be_ready(
    version: LibraryVersion, replaced: LibraryVersion | None, order: LoadOrder
) -> int:
    """Return how many interpreters must have imported a version before it is published."""
    if order.min_ready or version.is_active:
        return max(order.min_ready, 1)
    serving = sum(replica.is_serving for replica in replaced.replicas) if replaced else 0
    wanted = order.interpreters or version.interpreters_wanted
    return max(min(serving, wanted), 1)


def _already(version: LibraryVersion, session: InterpreterSession) -> LoadOutcome:
    role = "primary" if version.interpreter is session else "replica"
    return LoadOutcome(version, role, already_loaded=True)


class _Wanted:
    """Whether a caller still awaits an import."""

    def __init__(self) -> None:
        self._wanted = True

    def no_more(self) -> None:
        self._wanted = False

    def __call__(self) -> bool:
        return self._wanted


def _by(race: LoadRace) -> str:
    imports = race.describe_imports()
    return f" by {imports}" if imports else ""


def _out_of_time(order: LoadOrder, wait: LoadWait) -> DeadlineExceededError | WaitTimeoutError:
    session = wait.importing
    if session is not None and session.importing:
        return DeadlineExceededError(
            f"importing {order.source.label} into interpreter {session.name} took longer than the "
            f"{order.patience:.2g} s that its caller waits; nothing of it is published",
            hint="allow more time, as with --timeout",
            interpreter=session.name,
        )
    return WaitTimeoutError(
        f"library {order.name!r} was not loaded within {order.patience:.2g} s: it was waiting for "
        f"{wait}",
        hint="allow more time, as with --timeout",
        library=order.name,
    )
