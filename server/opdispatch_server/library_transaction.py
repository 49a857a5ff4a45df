"""Bringing one version of a library into the registry: all of it, or nothing.

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
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from opdispatch.errors import OpdispatchError
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.interpreter_sessions import InterpreterSession, InterpreterSessions
from opdispatch_server.library_store import LibraryStore
from opdispatch_server.library_version import KernelRoute, LibraryVersion, VersionState
from opdispatch_server.operator_registry import OperatorRegistry
from opdispatch_server.registration_codec import batch_from_proto
from opdispatch_wire.errors import DeadlineExceededError, LibraryLoadError
from opdispatch_wire.v1 import interpreter_pb2 as pb

LOG = logging.getLogger("opdispatch.libraries")

# Instructions but Stage run no code of users, so they are answered at once, unless a kernel
# holds the interpreter lock.
INSTRUCTION_TIMEOUT = 15.0

Recording = Callable[[], AbstractAsyncContextManager[None]]
"""Has a change in the journal while it is made; undone if it fails."""


class LibraryTransaction:
    """What the registry does with interpreters, one version at a time.

    ``publication`` is held whenever the daemon's dispatcher and the state of versions change,
    so that the two always agree.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        sessions: InterpreterSessions,
        store: LibraryStore,
        kill_interpreter: Callable[[InterpreterSession, str], None],
    ) -> None:
        self.publication = asyncio.Lock()
        self._operators = operators
        self._sessions = sessions
        self._store = store
        self._kill_interpreter = kill_interpreter

    async def bring_up(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion | None,
        *,
        timeout: float,
        still_wanted: Callable[[], bool] = lambda: True,
        recording: Recording = nullcontext,
        on_published: Callable[[], None] = lambda: None,
    ) -> None:
        """Loads ``version`` into ``session`` and publishes it in the place of ``replaced``.

        ``still_wanted`` is asked before that; ``recording`` is entered once every check has
        passed, and left when it is published; ``on_published`` is called with it, while
        ``publication`` is held.
        Raises what the import raised, the RegistrationError of a registration that does not fit,
        DeadlineExceededError, or InterpreterDiedError.
        """
        session.loading = str(version)
        try:
            batch = await self._stage(version, session, replaced, timeout)
            fault_point(FaultPoint.STAGED)
            async with AsyncExitStack() as recorded:
                try:
                    await asyncio.to_thread(_take_batch, version, batch)
                    old = replaced.handles if replaced else ()
                    await asyncio.to_thread(self._operators.check, version.registrations, old)
                    if not still_wanted():
                        raise DeadlineExceededError(f"nobody waits for {version} any more")
                    await self._keep_content(version)
                    await recorded.enter_async_context(recording())
                except Exception:
                    abort = pb.DaemonMessage(abort=pb.Abort(load_id=version.load_id))
                    await self._follow_up(session, abort)
                    raise
                commit = pb.DaemonMessage(commit=pb.Commit(load_id=version.load_id))
                await self._publish(version, session, replaced, commit, on_published)
        finally:
            session.loading = ""
        await self.mirror(version, replaced)

    async def bring_back(
        self, version: LibraryVersion, session: InterpreterSession, replaced: LibraryVersion
    ) -> None:
        """Publishes a kept version again, in the place of ``replaced``. Raises as ``bring_up``."""
        await asyncio.to_thread(self._operators.check, version.registrations, replaced.handles)
        restore = pb.Restore(load_id=version.load_id, replaces=replaced.load_id)
        await self._publish(version, session, replaced, pb.DaemonMessage(restore=restore))
        await self.mirror(version, replaced)

    async def mirror(self, version: LibraryVersion, replaced: LibraryVersion | None) -> None:
        """Tells every other interpreter of a version that was published."""
        others = [s for s in self._sessions.ready() if s is not version.interpreter]
        await asyncio.gather(*(self.mirror_to(s, version, replaced) for s in others))

    async def mirror_to(
        self, session: InterpreterSession, version: LibraryVersion, replaced: LibraryVersion | None
    ) -> None:
        """Tells one interpreter of a version; one that fails to follow is stopped."""
        if not version.is_active:
            return  # its own has died, and everybody has been told that already
        mirror = pb.Mirror(
            load_id=version.load_id,
            name=version.name,
            batch=version.batch,
            replaces=replaced.load_id if replaced else 0,
        )
        await self._follow_up(session, pb.DaemonMessage(mirror=mirror))

    async def retire(self, version: LibraryVersion, *, keep: bool) -> None:
        """Has every interpreter undo a version; its own keeps the code, if ``keep``."""
        await asyncio.gather(
            *(
                self._follow_up(
                    session,
                    pb.DaemonMessage(
                        retire=pb.Retire(
                            load_id=version.load_id, keep=keep and session is version.interpreter
                        )
                    ),
                )
                for session in self._sessions.all()
                if session.alive
            )
        )

    async def withdraw(self, versions: list[LibraryVersion], state: VersionState) -> None:
        """Takes versions out of the registry, in one publication. The lock is held."""
        handles = [handle for version in versions for handle in version.handles]
        for version in versions:
            version.state = state  # first: it explains why an operator is not there
        if handles:
            await asyncio.to_thread(self._operators.publish, (), handles)
        for version in versions:
            self._operators.disown(version)
            version.handles = ()

    async def _stage(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion | None,
        timeout: float,
    ) -> pb.RegistrationBatch:
        stage = pb.Stage(
            load_id=version.load_id, name=version.name, replaces=replaced.load_id if replaced else 0
        )
        if version.source.is_module:
            stage.module = version.source.label
        else:
            stage.filename = version.source.label
            content = version.content
            if content is None:
                content = await asyncio.to_thread(self._store.get, version.source.sha256)
            stage.content = content
        try:
            answer = await session.instruct(pb.DaemonMessage(stage=stage), timeout=timeout)
        except DeadlineExceededError as error:
            self._kill_interpreter(session, f"the import of {version} took too long")
            raise DeadlineExceededError(
                f"importing {version.source.label} took longer than {timeout:g} s; interpreter "
                f"{session.name}, which was doing it, has been stopped",
                hint="raise the limit with `opdispatch serve --load-timeout`",
                interpreter=session.name,
            ) from error
        return answer.staged

    async def _keep_content(self, version: LibraryVersion) -> None:
        """Stores an upload, before anybody is told that it is loaded."""
        if version.content is None:
            return
        try:
            await asyncio.to_thread(self._store.put, version.content)
        except OSError as error:
            raise LibraryLoadError(
                f"{version.source.label} cannot be stored: {error.strerror}",
                hint="see the daemon's --state folder",
            ) from error
        version.content = None

    async def _publish(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion | None,
        instruction: pb.DaemonMessage,
        on_published: Callable[[], None] = lambda: None,
    ) -> None:
        """Has the interpreter publish a version that passed every check, then publishes it."""
        try:
            await session.instruct(instruction, timeout=INSTRUCTION_TIMEOUT)
            fault_point(FaultPoint.INTERPRETER_COMMITTED)
            async with self.publication:
                if not session.alive:
                    raise session.death(f"loading {version}")
                old = replaced.handles if replaced else ()
                version.interpreter = session  # calls come from the moment of publication on
                version.handles = await asyncio.to_thread(
                    self._operators.publish, version.registrations, old
                )
                version.become_active(self._operators.epoch)
                self._operators.own(version)
                if replaced is not None:
                    self._operators.disown(replaced)
                    replaced.handles = ()
                    replaced.state = VersionState.KEPT
                on_published()
            fault_point(FaultPoint.PUBLISHED)
        except Exception:
            if session.alive:  # and may have published what the daemon has not
                self._kill_interpreter(session, f"{version} could not be published")
            raise

    async def _follow_up(self, session: InterpreterSession, message: pb.DaemonMessage) -> None:
        """Gives an instruction that carries out what the daemon has decided already."""
        what = message.WhichOneof("kind")
        try:
            await session.instruct(message, timeout=INSTRUCTION_TIMEOUT)
        except OpdispatchError as error:
            if session.alive:
                # It would answer nested calls by an older registry than everybody else's.
                LOG.error("interpreter %s failed to %s: %s", session.name, what, error)
                self._kill_interpreter(session, f"it failed to {what} a library")


def _take_batch(version: LibraryVersion, batch: pb.RegistrationBatch) -> None:
    registrations = batch_from_proto(
        batch,
        lambda place, documentation: KernelRoute.kernel(version, place, documentation),
    )
    version.take_batch(batch, registrations)
    if not version.registrations:
        raise LibraryLoadError(
            f"{version.source.label} registers nothing",
            hint="a kernel library registers operators with opdispatch.Library when imported",
        )
