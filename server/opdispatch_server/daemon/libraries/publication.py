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

A failure up to the daemon's publication leaves every process as it was.
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
from opdispatch_server.daemon.libraries.instructions import (
    INSTRUCTION_TIMEOUT,
    InterpreterInstructions,
    StopInterpreter,
    finish,
    instruction_timeout,
)
from opdispatch_server.daemon.libraries.kernel_route import KernelRoute
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.replica import ReplicaState
from opdispatch_server.daemon.libraries.replica_joining import ReplicaJoining
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
"""Records a change in the journal on entry; undoes the record if the body raises."""


class LibraryPublication:
    """Publishes versions, one at a time, step by step with the interpreters.

    ``lock`` is held whenever the daemon's dispatcher and the state of versions change, so that the
    two always agree. ``_order`` is held, outside of ``lock``, from the check of a batch to its
    publication and the posting of the resulting instructions: what was checked is what is
    published, and every interpreter receives publications in their order. No user code runs while
    either is held.
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
        self._instructions = InterpreterInstructions(sessions, kill_interpreter)
        self.staging = LibraryStaging(self._instructions, store, kill_interpreter, judge)
        self.joining = ReplicaJoining(
            self._order, self._instructions, self.staging, routes, kill_interpreter
        )
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
        """Publish what ``session`` has staged, in place of ``replaced``.

        ``others`` have staged the same, and are replicas from the moment of publication on.
        ``still_wanted`` is called before that; ``recording`` is entered once every check has
        passed, and left when the version is published; ``on_published`` is called with the version
        while ``lock`` is held. ``published_after`` returns, for a version that comes back, the
        versions that its kernels belong below; ``permit`` raises PermissionDeniedError if the
        caller may not register the content. Raises that error, the RegistrationError of a
        registration that conflicts, DeadlineExceededError, LibraryLoadError, JournalError, or
        InterpreterDiedError.
        """
        fault_point(FaultPoint.STAGED)
        with self._collections.spared():
            try:
                # Before ``_order`` is held: decoding a large batch takes long, and no publication
                # affects it.
                await asyncio.to_thread(_take_batch, version, batch)
                permit(version)
                for each, its in others.items():
                    check_same_batch(version, its, each.name)
            except Exception:
                await self.staging.abandon(version, session, *others)
                raise
            # Held until the mirrors are posted: no other version can come between the check and its
            # publication, and each interpreter receives publications in the order in which they
            # were made.
            async with self._order, AsyncExitStack() as recorded:
                try:
                    old = replaced.handles if replaced else ()
                    await asyncio.to_thread(self._operators.check, version.registrations, old)
                    # Not earlier: the check waited for another thread, and callers may have left
                    # meanwhile.
                    if not still_wanted():
                        raise DeadlineExceededError(f"no caller waits for {version} any more")
                    # The journal first. If the daemon dies from here on, the next one finds the
                    # version there; if a later step fails, the record is undone as the stack
                    # unwinds.
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
                # Posted while ``_order`` is held, to keep their order, but awaited after it: a slow
                # interpreter delays no other load.
                mirrors = self._instructions.mirror_everywhere(version, above)
        await finish(mirrors)

    async def bring_back(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion,
        recording: Recording,
    ) -> None:
        """Publish a kept version again, in place of ``replaced``, as ``publish`` does.

        ``session`` holds it and is not importing; other replicas follow. Also raises
        LibraryNotFoundError if ``session`` no longer holds it.
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
                for replica in others:  # their nested calls do not use this version yet
                    replica.state = ReplicaState.JOINING
                message = pb.DaemonMessage(restore=restore)
                try:
                    await self._publish(version, session, replaced, message)
                except BaseException:
                    for replica in others:
                        replica.state = ReplicaState.SERVING
                    raise
            instructed = self._instructions.mirror_everywhere(version)
            for replica in version.replicas:
                if replica.session is not session:
                    message = pb.DaemonMessage(restore=restore)
                    instructed += self._instructions.post(
                        replica.session,
                        message,
                        self.joining.once_committed(replica),
                        timeout=instruction_timeout(version),
                    )
        await finish(instructed)

    async def retire(self, version: LibraryVersion, *, keep: bool) -> None:
        """Undo a version in every interpreter; its holders keep the code if ``keep`` is true.

        Does nothing if the version is brought back before ``_order`` is acquired. While it is being
        brought back it is not active yet, but its interpreters may already have been instructed:
        hence the lock.
        """
        load_id = version.load_id
        async with self._order:
            if version.is_active or version.load_id != load_id:
                return
            instructed = self._instructions.retire_everywhere(version, keep=keep)
            if not keep:
                version.replicas = []  # a rollback imports it again
        await finish(instructed)

    async def find_disagreements(
        self, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> list[str]:
        """Return how interpreters differ from the daemon, in words, once they are up to date."""
        async with self._order:  # all instructions of the last publication have been posted
            active = {each.load_id: each for each in versions() if each.is_active}
            reports = self._instructions.ask_for_reports()
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
        """Remove versions from the registry, in one publication. The caller holds ``lock``.

        Routes must be closed, unless the interpreters of the versions have died. Versions that lose
        their last interpreter are retired in the others at once: they may be published again under
        the same load id.
        """
        published = [version for version in versions if version.handles]
        for version in versions:
            version.state = state  # first: the state explains why an operator no longer exists
            if state is VersionState.WAITING:
                self._instructions.retire_everywhere(version, keep=False)
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
        """Publish in interpreters what they have staged; return the live ones that succeeded."""
        timeout = instruction_timeout(version)
        outcomes = await asyncio.gather(
            *(each.instruct(_copy_of(instruction), timeout=timeout) for each in others),
            return_exceptions=True,
        )
        for each, outcome in zip(others, outcomes, strict=True):
            if isinstance(outcome, BaseException) and each.alive:  # it may have published
                self._kill_interpreter(each, f"it failed to join {version}", Cause.SILENT, None)
        return [each for each in others if each.alive]

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

        ``others`` publish it, too, and become replicas, except those that fail to.
        """
        try:
            keep = instruction.HasField("restore")
            undo = pb.DaemonMessage(retire=pb.Retire(load_id=version.load_id, keep=keep))
            async with asyncio.timeout(instruction_timeout(version)):
                posted = session.post(instruction)
                # The interpreter before the daemon: nested calls of its kernels must find the
                # version as soon as clients' calls arrive.
                checked_answer(await self._instructions.unless_busy(version, session, posted, undo))
            others = await self._commit_others(version, others, instruction)
            fault_point(FaultPoint.INTERPRETER_COMMITTED)
            # Routes are closed before the lock is taken, because interpreters may take long to
            # answer. They are closed so that no call that begins after this change was acknowledged
            # runs, by an old route, the version that it replaced.
            async with self.routes.closed(), self.lock:
                # Checked with the lock held. ``interpreter_left`` waits for the lock, so a death is
                # noticed either here or there.
                if not session.alive:
                    raise session.death(f"loading {version}")
                old = replaced.handles if replaced else ()
                # Calls may arrive from the moment of publication on.
                replica = version.find_replica(session) or version.add_replica(
                    session, ReplicaState.SERVING
                )
                replica.state = ReplicaState.SERVING
                for other in others:
                    if other.alive:  # a dead one may have been removed already
                        version.add_replica(other, ReplicaState.SERVING)
                stay = [below for below in above if below.is_active]
                await asyncio.to_thread(self._operators.own, version)  # before calls can find it
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
                    # It may have published what the daemon has not; a busy interpreter undoes that
                    # later.
                    if holder.alive and not holder.busy:
                        reason = f"{version} could not be published"
                        self._kill_interpreter(holder, reason, Cause.SILENT, None)
                await asyncio.to_thread(self._operators.disown, version)
            raise


def _copy_of(message: pb.DaemonMessage) -> pb.DaemonMessage:
    """Return a copy, because each message is given a number of its own."""
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
