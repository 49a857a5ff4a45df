"""Publication of one version of a library: all of it, or nothing.

    daemon                         interpreter                  other interpreters
    Stage            ->            imports it, publishes nothing
                     <-            the batch of registrations
    checks the batch against the registry
    records it in the journal (see Note [What is acknowledged])
    Commit           ->            publishes it for its own nested calls
    publishes it for clients
    Mirror           ->                                         publish kernels that forward
    replies to the client

A failure up to the daemon's publication leaves every process as it was. A replica is staged and
committed in the same way, but its batch is compared with the one that is published, and nothing
else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from itertools import chain
from types import MappingProxyType

from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.daemon.interpreters.session import InterpreterSession, checked_answer
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.batch_comparison import check_same_batch
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.followers import (
    INSTRUCTION_TIMEOUT,
    Followers,
    StopInterpreter,
    finish,
    instruction_timeout,
)
from opdispatch_server.daemon.libraries.kernel_route import KernelRoute
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.replica import Replica, ReplicaState
from opdispatch_server.daemon.libraries.staging import LibraryStaging
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.full_collections import FullCollections
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.registration_codec import batch_from_proto
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    LibraryLoadError,
    LibraryNotFoundError,
)
from opdispatch_wire.v1 import interpreter_pb2 as pb

Recording = Callable[[], AbstractAsyncContextManager[None]]
"""Has a change in the journal while it is made; undone if it fails."""


class LibraryPublication:
    """The steps that the registry takes with interpreters, one version at a time.

    ``lock`` is held whenever the daemon's dispatcher and the state of versions change,
    so that the two always agree. ``_order`` is held, outside of it, from the check of a batch to
    its publication and the posting of what follows from that: what was checked is what is
    published, and every interpreter hears of publications in their order. No code of users
    runs while either is held.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        sessions: InterpreterSessions,
        store: LibraryStore,
        routes: DirectRoutes,
        kill_interpreter: StopInterpreter,
        judge: Callable[[InterpreterSession], Verdict],
    ) -> None:
        self.lock = asyncio.Lock()
        self.routes = routes
        self._order = asyncio.Lock()
        self._operators = operators
        self._store = store
        self._kill_interpreter = kill_interpreter
        self._followers = Followers(sessions, kill_interpreter)
        self.staging = LibraryStaging(self._followers, store, kill_interpreter, judge)
        self._collections = FullCollections()

    async def publish(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        batch: pb.RegistrationBatch,
        replaced: LibraryVersion | None,
        *,
        others: Mapping[InterpreterSession, pb.RegistrationBatch] = MappingProxyType({}),
        still_wanted: Callable[[], bool] = lambda: True,
        recording: Recording = nullcontext,
        on_published: Callable[[], None] = lambda: None,
        published_after: Callable[[], Sequence[LibraryVersion]] = tuple,
        permit: Callable[[LibraryVersion], None] = lambda version: None,
    ) -> None:
        """Publish what ``session`` has staged, in the place of ``replaced``.

        ``others`` have staged the same, and are replicas from the moment of publication on.
        ``still_wanted`` is asked before that; ``recording`` is entered once every check has
        passed, and left when it is published; ``on_published`` is called with it, while
        ``lock`` is held. ``published_after`` says, for a version that comes back, which
        ones its kernels belong below; ``permit`` raises PermissionDeniedError if its caller may not
        register what is in it. Raises that, the RegistrationError of a registration that does not
        fit, DeadlineExceededError, LibraryLoadError, JournalError, or InterpreterDiedError.
        """
        fault_point(FaultPoint.STAGED)
        with self._collections.spared():
            try:
                # Before the turn: to decode a large batch takes long, and no publication changes
                # it.
                await asyncio.to_thread(_take_batch, version, batch)
                permit(version)
                for each, its in others.items():
                    check_same_batch(version, its, each.name)
            except Exception:
                await self.staging.abandon(version, session, *others)
                raise
            # Held until the mirrors are posted: no other version can come between the check and its
            # publication, and each interpreter gets publications in the order in which they were
            # made.
            async with self._order, AsyncExitStack() as recorded:
                try:
                    old = replaced.handles if replaced else ()
                    await asyncio.to_thread(self._operators.check, version.registrations, old)
                    # Only now: the check has waited in another thread, and callers may have left
                    # meanwhile.
                    if not still_wanted():
                        raise DeadlineExceededError(f"no caller waits for {version} any more")
                    # The journal first. A daemon that dies from here on finds the version there,
                    # and what fails below takes it back as the stack unwinds.
                    await recorded.enter_async_context(recording())
                except Exception:
                    await self.staging.abandon(version, session, *others)
                    raise
                above = published_after()
                commit = pb.Commit(load_id=version.load_id, above=[each.load_id for each in above])
                await self._publish(
                    version,
                    session,
                    replaced,
                    pb.DaemonMessage(commit=commit),
                    on_published,
                    above,
                    [*others],
                )
                # Posted in this turn, for their order, but awaited after it: a slow interpreter
                # delays no other load.
                mirrors = self._followers.mirror_everywhere(version, above)
        await finish(mirrors)

    async def join(
        self, version: LibraryVersion, session: InterpreterSession, batch: pb.RegistrationBatch
    ) -> None:
        """Make what ``session`` has staged a replica of the active version.

        Raises LibraryLoadError if it registers something else, or InterpreterDiedError.
        """
        try:
            check_same_batch(version, batch, session.name)
        except LibraryLoadError:
            await self.staging.abandon(version, session)
            raise
        if not session.alive:  # and struck off, perhaps, while it waited for its turn
            raise session.death(f"joining {version}")
        replica = version.add_replica(session, ReplicaState.JOINING)
        commit = pb.DaemonMessage(commit=pb.Commit(load_id=version.load_id))
        try:
            await session.instruct(commit, timeout=instruction_timeout(version))
        except BaseException:
            if session.alive:  # and may be calling its own kernels already
                self._kill_interpreter(session, f"it failed to join {version}", Cause.SILENT, None)
            raise
        self._serve(replica)

    async def bring_back(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion,
        recording: Recording,
    ) -> None:
        """Publish a kept version again, in the place of ``replaced``. As ``publish``.

        ``session`` holds it, and imports nothing now; other replicas follow. Raises
        LibraryNotFoundError, too, if it does not any more.
        """
        restore = pb.Restore(load_id=version.load_id)
        async with self._order, AsyncExitStack() as recorded:
            if version.find_replica(session) is None:
                raise LibraryNotFoundError(
                    f"interpreter {session.name} has just released {version}"
                )
            with self._collections.spared():
                await asyncio.to_thread(
                    self._operators.check, version.registrations, replaced.handles
                )
                await recorded.enter_async_context(recording())
                others = [r for r in version.replicas if r.session is not session and r.is_serving]
                for replica in others:  # their nested calls are not this version's yet
                    replica.state = ReplicaState.JOINING
                message = pb.DaemonMessage(restore=restore)
                try:
                    await self._publish(version, session, replaced, message)
                except BaseException:
                    for replica in others:
                        replica.state = ReplicaState.SERVING
                    raise
            following = self._followers.mirror_everywhere(version)
            for replica in version.replicas:
                if replica.session is not session:
                    message = pb.DaemonMessage(restore=restore)
                    following += self._followers.post(
                        replica.session,
                        message,
                        self._serves(replica),
                        timeout=instruction_timeout(version),
                    )
        await finish(following)

    async def welcome(
        self, session: InterpreterSession, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> None:
        """Send a new interpreter all active publications, in their order.

        It is ready as soon as they are sent.

        ``versions`` is called once nothing more is published until then: no other code sends
        the interpreter publications before it is ready.
        """
        async with self._order:
            mirrors = [
                task
                for version in sorted(versions(), key=lambda version: version.position)
                if version.is_active
                for task in self._followers.mirror(session, version)
            ]
            session.ready = session.alive
            self.routes.announce(session)
        await finish(mirrors)

    async def demote(self, version: LibraryVersion, replica: Replica) -> None:
        """Take a version's code out of an interpreter that has finished its calls."""
        version.remove_replica(replica.session)
        if version.is_active:
            await finish(self._followers.mirror(replica.session, version))
        elif version.state is VersionState.KEPT:
            await finish(self._followers.retire(replica.session, version, keep=False))

    async def retire(self, version: LibraryVersion, *, keep: bool) -> None:
        """Undo a version in every interpreter; its own keep the code, if ``keep``.

        Unless it has been brought back before its turn comes. In the middle of that it is not
        active yet, but its interpreters may have been told already: hence the lock.
        """
        load_id = version.load_id
        async with self._order:
            if version.is_active or version.load_id != load_id:
                return
            following = self._followers.retire_everywhere(version, keep=keep)
            if not keep:
                version.replicas = []  # a rollback has it imported again
        await finish(following)

    async def find_disagreements(
        self, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> list[str]:
        """Return how interpreters differ from the daemon, in words, once they are up to date."""
        async with self._order:  # whatever follows from the last publication has been posted
            active = {each.load_id: each for each in versions() if each.is_active}
            reports = self._followers.ask_for_reports()
        if not reports:
            return []
        await asyncio.wait(reports.values(), timeout=INSTRUCTION_TIMEOUT)
        found = []
        for session, report in reports.items():
            if not report.done():
                found.append(f"{session.name} did not say what is registered there")
                continue
            try:
                told = checked_answer(report.result()).registry_report
            except InterpreterDiedError:
                continue
            found += [f"{session.name}: {violation}" for violation in told.violations]
            missing = active.keys() - set(told.load_ids)
            found += [f"{active[i]} is not in force in {session.name}" for i in sorted(missing)]
        return found

    async def withdraw(self, versions: list[LibraryVersion], state: VersionState) -> None:
        """Take versions out of the registry, in one publication. The lock is held.

        Unless their interpreters have died, the routes are closed.

        Those that lose their last interpreter are retired in the others at once: they may be
        published again under the same load id.
        """
        published = [version for version in versions if version.handles]
        for version in versions:
            version.state = state  # first: it explains why an operator is not there
            if state is VersionState.WAITING:
                self._followers.retire_everywhere(version, keep=False)
        if not published:
            return
        handles = list(chain.from_iterable(version.handles for version in published))
        await asyncio.to_thread(self._operators.publish, (), handles)
        self._operators.begin_epoch()
        for version in published:
            await asyncio.to_thread(self._operators.disown, version)
        self.routes.renew()

    async def _commit_others(
        self,
        version: LibraryVersion,
        others: Sequence[InterpreterSession],
        instruction: pb.DaemonMessage,
    ) -> list[InterpreterSession]:
        """Publish in interpreters what they have staged; return those that did, and live."""
        timeout = instruction_timeout(version)
        outcomes = await asyncio.gather(
            *(each.instruct(_copy_of(instruction), timeout=timeout) for each in others),
            return_exceptions=True,
        )
        for each, outcome in zip(others, outcomes, strict=True):
            if isinstance(outcome, BaseException) and each.alive:  # it may have
                self._kill_interpreter(each, f"it failed to join {version}", Cause.SILENT, None)
        return [each for each in others if each.alive]

    def reclaim(self, replica: Replica) -> None:
        """Keep a replica that is leaving: it still has the code."""
        if replica.state is ReplicaState.LEAVING:
            self._serve(replica)

    def stays_in(self, version: LibraryVersion, session: InterpreterSession) -> bool:
        """Return whether an interpreter serves a version; one that was to leave it stays, then."""
        replica = version.find_replica(session)
        if replica is None:
            return False
        self.reclaim(replica)
        return replica.is_serving

    def _serve(self, replica: Replica) -> None:
        replica.state = ReplicaState.SERVING
        self.routes.renew()  # routes that are known do not name it yet

    def _serves(self, replica: Replica) -> Callable[[], None]:
        def note() -> None:
            if replica.state is ReplicaState.JOINING:
                self._serve(replica)

        return note

    async def _publish(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion | None,
        instruction: pb.DaemonMessage,
        on_published: Callable[[], None] = lambda: None,
        above: Sequence[LibraryVersion] = (),
        others: Sequence[InterpreterSession] = (),
    ) -> None:
        """Publish a version that passed every check in the interpreter, then here.

        So do ``others``, which are replicas then; those that fail to are not.
        """
        try:
            keep = instruction.HasField("restore")
            undo = pb.DaemonMessage(retire=pb.Retire(load_id=version.load_id, keep=keep))
            async with asyncio.timeout(instruction_timeout(version)):
                posted = session.post(instruction)
                # The interpreter before the daemon: its kernels' own calls must find the version as
                # soon as clients' calls arrive.
                checked_answer(await self._followers.unless_busy(version, session, posted, undo))
            others = await self._commit_others(version, others, instruction)
            fault_point(FaultPoint.INTERPRETER_COMMITTED)
            # Routes before the lock: interpreters may take long to answer, and what begins after
            # this change was acknowledged must not run, by an old route, what it replaced.
            async with self.routes.closed(), self.lock:
                # Looked at with the lock held. ``interpreter_left`` waits for it, so that a death
                # is seen either here or there, and never by neither.
                if not session.alive:
                    raise session.death(f"loading {version}")
                old = replaced.handles if replaced else ()
                # Calls come from the moment of publication on.
                replica = version.find_replica(session) or version.add_replica(
                    session, ReplicaState.SERVING
                )
                replica.state = ReplicaState.SERVING
                for other in others:
                    if other.alive:  # else it may have been struck off already
                        version.add_replica(other, ReplicaState.SERVING)
                stay = [below for below in above if below.is_active]
                await asyncio.to_thread(self._operators.own, version)  # before it can be found
                version.handles, *of_stay = await asyncio.to_thread(
                    self._operators.publish,
                    version.registrations,
                    old,
                    [each.handles for each in stay],
                )
                for each, handles in zip(stay, of_stay, strict=True):
                    each.handles = handles
                version.become_active()
                self._store.prove(version.source.sha256)
                if replaced is not None:
                    replaced.state = VersionState.KEPT
                self._operators.begin_epoch()
                on_published()
                if replaced is not None:
                    await asyncio.to_thread(self._operators.disown, replaced)
            fault_point(FaultPoint.PUBLISHED)
        except BaseException:
            if not version.is_active:
                for holder in (session, *others):
                    version.remove_replica(holder)
                    # It may have published what the daemon has not; a busy one undoes that itself.
                    if holder.alive and not holder.busy:
                        reason = f"{version} could not be published"
                        self._kill_interpreter(holder, reason, Cause.SILENT, None)
                await asyncio.to_thread(self._operators.disown, version)
            raise


def _copy_of(message: pb.DaemonMessage) -> pb.DaemonMessage:
    """Return a copy: each gets a number of its own."""
    copy = pb.DaemonMessage()
    copy.CopyFrom(message)
    return copy


def _take_batch(version: LibraryVersion, batch: pb.RegistrationBatch) -> None:
    registrations = batch_from_proto(batch, KernelRoute.kernel)
    version.take_batch(batch, registrations)
    if not version.registrations and not batch.device_types:
        raise LibraryLoadError(
            f"{version.source.label} registers nothing",
            hint="a kernel library registers operators with opdispatch.Library when imported",
        )
