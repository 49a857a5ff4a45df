"""Add and remove interpreters that hold an active version, without a publication.

A replica is staged and committed like a new version (see publication.py), but its batch is compared
with the published one, and nothing else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.batch_comparison import check_same_batch
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.instructions import (
    InterpreterInstructions,
    StopInterpreter,
    finish,
    instruction_timeout,
)
from opdispatch_server.daemon.libraries.replica import Replica, ReplicaState
from opdispatch_server.daemon.libraries.staging import LibraryStaging
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.v1 import interpreter_pb2 as pb


class ReplicaJoining:
    """Adds replicas of published versions. For use in the event loop only.

    ``order`` is the publication's: while it is held, no other code posts publications.
    """

    def __init__(
        self,
        order: asyncio.Lock,
        instructions: InterpreterInstructions,
        staging: LibraryStaging,
        routes: DirectRoutes,
        kill_interpreter: StopInterpreter,
    ) -> None:
        self._order = order
        self._instructions = instructions
        self._staging = staging
        self._routes = routes
        self._kill_interpreter = kill_interpreter

    async def join(
        self, version: LibraryVersion, session: InterpreterSession, batch: pb.RegistrationBatch
    ) -> None:
        """Make what ``session`` has staged a replica of the active version.

        Raises LibraryLoadError if its registrations differ, or InterpreterDiedError.
        """
        try:
            check_same_batch(version, batch, session.name)
        except LibraryLoadError:
            await self._staging.abandon(version, session)
            raise
        if not session.alive:  # it may have been removed while it waited for ``_order``
            raise session.death(f"joining {version}")
        replica = version.add_replica(session, ReplicaState.JOINING)
        commit = pb.DaemonMessage(commit=pb.Commit(load_id=version.load_id))
        try:
            await session.instruct(commit, timeout=instruction_timeout(version))
        except BaseException:
            if session.alive:  # its kernels may be calling each other already
                self._kill_interpreter(session, f"it failed to join {version}", Cause.SILENT, None)
            raise
        self._serve(replica)

    async def welcome(
        self, session: InterpreterSession, versions: Callable[[], Iterable[LibraryVersion]]
    ) -> None:
        """Send a new interpreter all active publications, in order; then it is ready.

        ``versions`` is called at a point after which nothing is published until the interpreter is
        ready: no other code sends it publications before that.
        """
        async with self._order:
            mirrors = [
                task
                for version in sorted(versions(), key=lambda version: version.position)
                if version.is_active
                for task in self._instructions.mirror(session, version)
            ]
            session.ready = session.alive
            self._routes.announce(session)
        await finish(mirrors)

    async def demote(self, version: LibraryVersion, replica: Replica) -> None:
        """Remove a version's code from an interpreter that has finished its calls."""
        version.remove_replica(replica.session)
        if version.is_active:
            await finish(self._instructions.mirror(replica.session, version))
        elif version.state is VersionState.KEPT:
            await finish(self._instructions.retire(replica.session, version, keep=False))

    def reclaim(self, replica: Replica) -> None:
        """Keep a replica that was leaving: it still has the code."""
        if replica.state is ReplicaState.LEAVING:
            self._serve(replica)

    def stays_in(self, version: LibraryVersion, session: InterpreterSession) -> bool:
        """Return whether an interpreter serves a version; one that was to leave it stays."""
        replica = version.find_replica(session)
        if replica is None:
            return False
        self.reclaim(replica)
        return replica.is_serving

    def once_committed(self, replica: Replica) -> Callable[[], None]:
        """Return a function to call once a replica that is joining has published its kernels."""

        def note() -> None:
            if replica.state is ReplicaState.JOINING:
                self._serve(replica)

        return note

    def _serve(self, replica: Replica) -> None:
        replica.state = ReplicaState.SERVING
        self._routes.renew()  # existing routes do not name it yet
