"""Choose the interpreter for a library: ready, not drained, with the device that it needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opdispatch.errors import DeviceError
from opdispatch_server.blame.separation import Separation
from opdispatch_server.daemon.event_loop.wake_up import WakeUp
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.device_holders import DeviceHolders
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.replica import ReplicaState
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool
from opdispatch_wire.errors import InterpreterNotFoundError, RefusedError

BUSY_PATIENCE = 5.0
"""Seconds that a replica waits for an interpreter that is importing something else.

After that it is made in the next interpreter that is free.
"""

INTERPRETER_WAIT = 30.0
"""Seconds that a load waits for an interpreter that is about to be ready.

That is as long as a call waits for its library.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a load is to go: an interpreter by name, any with a type of device, or anywhere."""

    interpreter: str = ""
    device: str = ""
    # The interpreters that may hold it at all; None: the shared ones.
    pool: InterpreterPool | None = None


class Placement:
    """Chooses interpreters, and makes each import one library at a time.

    A session's ``loading`` is set from ``claim`` to ``release``, beginning in the step of the event
    loop that chose it. ``on_freed`` is called after each release. For use in the event loop only.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        pools: InterpreterPools,
        versions: Callable[[], Iterable[LibraryVersion]],
        devices: DeviceHolders,
        separation: Separation,
    ) -> None:
        self._sessions = sessions
        self._pools = pools
        self._versions = versions
        self._devices = devices
        self._separation = separation
        # By name: an interpreter stays drained when it is restarted.
        self._draining: set[str] = set()
        self._changes = WakeUp()
        self.on_freed: Callable[[], None] = lambda: None

    def is_draining(self, session: InterpreterSession) -> bool:
        """Return whether the interpreter is being drained."""
        return session.name in self._draining

    def names_for_all(self) -> list[str]:
        """Return the interpreters open to all libraries, live or about to be restarted."""
        return [name for name in self._pools.names_for_all() if name not in self._draining]

    def start_draining(self, session: InterpreterSession) -> None:
        """Start draining: the interpreter is given nothing new from now on."""
        self._draining.add(session.name)
        self.note_change()

    def end_draining(self, name: str) -> bool:
        """End draining; return whether the interpreter was being drained."""
        was_draining = name in self._draining
        self._draining.discard(name)
        self.note_change()
        return was_draining

    def forget(self, session: InterpreterSession) -> None:
        """Forget an interpreter that has left; another one may be started under its name."""
        if not session.supervised:  # the next interpreter of its name is unrelated
            self._draining.discard(session.name)
        self.note_change()

    def restore_draining(self, names: Iterable[str]) -> None:
        """Restore the interpreters that were being drained before the daemon was restarted."""
        self._draining.update(names)

    def belongs(self, version: LibraryVersion, session: InterpreterSession) -> bool:
        """Return whether a version may stay in an interpreter.

        It may if the interpreter is not being drained, and is set aside for harmful libraries
        exactly if the version is harmful.
        """
        if self.is_draining(session):
            return False
        return self._may_hold(session, version.name, version.device, version.pool)

    def is_apart(self, version: LibraryVersion) -> bool:
        """Return whether a version is kept apart because it has brought interpreters down."""
        return version.name in self._separation.apart

    async def claim(self, place: Place, library: str, patience: float = 0.0) -> InterpreterSession:
        """Wait for an interpreter that is not importing; reserve it for one import of a library.

        If there is no candidate, importing or not, but one is about to be ready, waits for it up to
        ``patience`` seconds. Raises InterpreterNotFoundError if none comes, and RefusedError if the
        one that is asked for is being drained.
        """
        latest, clock = None, asyncio.get_running_loop().time
        while True:
            try:
                session = self._take(self._candidates(place, library))
            except InterpreterNotFoundError:
                latest = clock() + patience if latest is None else latest
                if clock() >= latest or not self._may_come(place):
                    raise
                with contextlib.suppress(TimeoutError):  # the loop raises the error itself
                    async with asyncio.timeout_at(latest):
                        await self._changes.wait()
                continue
            if session is not None:
                return session
            latest = None
            await self._changes.wait()

    def is_short_of(self, place: Place, library: str) -> bool:
        """Return whether there is no interpreter that could be claimed, importing or not."""
        try:
            return not self._candidates(place, library)
        except (InterpreterNotFoundError, RefusedError):
            return True

    async def claim_spare(
        self, version: LibraryVersion, patience: float
    ) -> InterpreterSession | None:
        """Like ``claim``, for one more replica of ``version``; None if no interpreter can hold it.

        Busy interpreters are waited for, up to ``patience`` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while spare := self.find_spare(version):
                    if session := self._take(spare):
                        return session
                    await self._changes.wait()
        return None

    async def claim_holder(self, version: LibraryVersion) -> InterpreterSession | None:
        """Like ``claim``, for an interpreter that holds ``version``; None if there is none."""
        while holders := {r.session: r for r in version.replicas if r.session.alive}:
            if session := self._take(holders):
                if holders[session].state is ReplicaState.LEAVING:
                    holders[session].state = ReplicaState.SERVING
                return session
            await self._changes.wait()
        return None

    def find_spare(self, version: LibraryVersion) -> list[InterpreterSession]:
        """Return the interpreters that could become replicas of ``version``, busy or not."""
        return [
            session
            for session in self._usable(version.device, version.pool)
            if version.find_replica(session) is None
            and self._may_hold(session, version.name, version.device, version.pool)
        ]

    def release(self, session: InterpreterSession) -> None:
        """End a claim."""
        session.loading = False
        self.note_change()
        self.on_freed()

    def note_change(self) -> None:
        """Wake all waiters to check again: interpreters have come, gone, or become free."""
        self._changes.note()

    async def wait_for_change(self) -> None:
        """Wait until interpreters have come, gone, or become free. Check before and after it."""
        await self._changes.wait()

    def is_coming(self, name: str = "") -> bool:
        """Return whether an interpreter is about to be ready: the named one, or any."""
        coming = self._pools.coming()
        return name in coming if name else bool(coming)

    def get(self, name: str) -> InterpreterSession:
        """Return the interpreter of that name, if it takes libraries. Raises as ``claim`` does."""
        session = self._sessions.get_ready(name)
        if self.is_draining(session):
            raise RefusedError(
                f"interpreter {name} is being drained and takes no new libraries",
                hint=f"`opdispatch drain {name} --undo` ends that",
                interpreter=name,
            )
        return session

    def _may_come(self, place: Place) -> bool:
        """Return whether an interpreter may soon be available to a load that has none now.

        One is being started, or is kept busy by a kernel.
        """
        absent = self._pools.coming()
        absent |= {each.name for each in self._pools.ready(place.pool) if not each.is_fit}
        if place.interpreter:
            return place.interpreter in absent
        return any(self._pools.find(name) is place.pool for name in absent - self._draining)

    def _candidates(self, place: Place, library: str) -> list[InterpreterSession]:
        if place.interpreter:
            session = self.get(place.interpreter)
            self._pools.check(session, place.pool)
            return [session]
        if usable := self._usable(place.device, place.pool):
            # If there are none of these, others are about to be ready.
            return [s for s in usable if self._may_hold(s, library, place.device, place.pool)]
        ready = self._pools.ready(place.pool)
        if not ready:
            problem, hint = self._pools.explain_want(place.pool)
            raise InterpreterNotFoundError(
                f"the library cannot be loaded: {problem or 'no interpreter is ready yet'}",
                hint=hint or "try again in a moment",
            )
        what = f"with a {place.device} device" if place.device else "that takes libraries now"
        raise InterpreterNotFoundError(
            f"there is no interpreter {what}; connected: {self._describe(ready)}",
            device=place.device,
        )

    def absence_of(self, device: str) -> DeviceError:
        """Return the error for a device that no interpreter has: it lists the existing ones."""
        return DeviceError(
            f"no interpreter has the device {device[:60]!r}; "
            f"connected: {self._describe(self._sessions.ready())}",
            device=device[:60],
        )

    def _describe(self, sessions: Iterable[InterpreterSession]) -> str:
        return ", ".join(
            f"{session.name} ({', '.join(self._devices.names_of(session))}"
            f"{'; draining' if self.is_draining(session) else ''}"
            f"{'; busy' if session.busy else ''}"
            f"{'; unfit' if session.unfit else ''})"
            for session in sessions
        )

    def _usable(self, device: str, pool: InterpreterPool | None) -> list[InterpreterSession]:
        can_have = self._devices.can_have([device] if device else [])
        return [
            session
            for session in self._pools.ready(pool)
            if session.is_fit and not self.is_draining(session) and can_have(session)
        ]

    def _may_hold(
        self,
        session: InterpreterSession,
        library: str,
        device: str,
        pool: InterpreterPool | None,
    ) -> bool:
        """Return whether a library may join the others that an interpreter is meant for.

        A library that needs a device goes where that device is, and one with its own interpreters
        affects no other library.
        """
        if device or pool is not None:
            return True
        return self._separation.may_hold(session.name, library)

    def _take(self, candidates: Iterable[InterpreterSession]) -> InterpreterSession | None:
        free = [session for session in candidates if not session.loading]
        if not free:
            return None
        held = Counter(each.session for version in self._versions() for each in version.replicas)
        session = min(free, key=held.__getitem__)
        session.loading = True
        return session
