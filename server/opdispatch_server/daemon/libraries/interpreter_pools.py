"""The pools of interpreters: opened, filled with processes, closed, ended."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from opdispatch_server.daemon.environments.build import Report
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.environments.store import Environment, EnvironmentStore
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.library_code.module_file import digest_module
from opdispatch_wire.errors import InterpreterNotFoundError, LibraryLoadError

START_TIMEOUT = 60.0
END_GRACE = 1.0
NAME_PART_LENGTH = 40


class InterpreterPools:
    """Every pool that a version holds open, by key. For use in the event loop only.

    ``on_ended`` is called with the name of an interpreter that has ended for good, which is free
    from then on.

    Invariants: a pool in ``_pools`` has users; ``_by_name`` has every name that the supervisor
    keeps running for a pool, until its process has ended and ``on_ended`` has been called.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        sessions: InterpreterSessions,
        environments: EnvironmentStore,
    ) -> None:
        self._supervisor = supervisor
        self._sessions = sessions
        self._environments = environments
        self._pools: dict[str, InterpreterPool] = {}
        self._by_name: dict[str, InterpreterPool] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.on_ended: Callable[[str], Awaitable[None]] = _nothing

    @asynccontextmanager
    async def opened(
        self, library: str, source: LibrarySource, report: Report
    ) -> AsyncIterator[tuple[InterpreterPool, LibrarySource]]:
        """Hold a pool open during the block, for a version that needs its own interpreters.

        Builds the environment that the library asks for, but starts no interpreter. The source
        returned has the digest of a module that could only be found in that environment. A version
        that outlives the block has to ``hold`` the pool. Raises LibraryLoadError.
        """
        home = source.home
        environment = None
        if home.has_environment:
            environment = await self._environments.get(home, report)
            if source.is_module:
                places = environment.places
                digest = await asyncio.to_thread(digest_module, source.label, places)
                source = dataclasses.replace(source, sha256=digest)
        pool = self._get(library, source, environment)
        pool.users += 1
        try:
            yield pool, source
        finally:
            self._close(pool)

    def hold(self, version: LibraryVersion, pool: InterpreterPool | None) -> None:
        """Hold the pool open for a version, until ``let_go``."""
        version.pool = pool
        if pool is not None:
            pool.users += 1

    def let_go(self, version: LibraryVersion) -> None:
        """Release the pool of a version that is gone for good. Idempotent."""
        pool, version.pool = version.pool, None
        if pool is not None:
            self._close(pool)

    async def provide_for(self, version: LibraryVersion) -> None:
        """Make sure that a version has its interpreters, including its pool.

        Does nothing for a version that shared interpreters suit. Raises LibraryLoadError.
        """
        if version.source.home.is_shared:
            return
        if version.pool is None:  # restored from the journal of a previous daemon
            async with self.opened(version.name, version.source, _ignore_step) as (pool, _):
                self.hold(version, pool)
        if version.pool is not None:
            await self.provide(version.pool, version.interpreters_wanted, _ignore_step)

    async def provide(self, pool: InterpreterPool, count: int, report: Report) -> None:
        """Make sure that ``count`` interpreters of the pool are ready. Raises LibraryLoadError."""
        while len(pool.names) < count:
            name = self._free_name(pool)
            report(f"starting interpreter {name}")
            pool.names.append(name)
            self._by_name[name] = pool
            self._supervisor.add(name)
        ready = asyncio.create_task(
            self._sessions.wait_until(lambda: len(self.ready(pool)) >= count, START_TIMEOUT)
        )
        troubles = {
            asyncio.create_task(self._supervisor.wait_quarantined(name)): name
            for name in pool.names
        }
        try:
            await asyncio.wait({ready, *troubles}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and ready.result():
                return
        finally:
            for task in (ready, *troubles):
                task.cancel()
        for task, name in troubles.items():
            if task.done() and not task.cancelled():
                raise LibraryLoadError(
                    f"interpreter {name} for {pool.reserved_for} could not be started: "
                    f"{task.result()}",
                    output="\n".join(list(self._supervisor.last_lines(name))[-10:]),
                )
        raise LibraryLoadError(
            f"{len(self.ready(pool))} of {count} interpreters for {pool.reserved_for} were "
            f"ready after {START_TIMEOUT:g} s; the daemon's log has their output"
        )

    def shrink(self, pool: InterpreterPool | None, versions: Iterable[LibraryVersion]) -> None:
        """End surplus interpreters of a pool that hold none of ``versions``, the list of all."""
        if pool is None:
            return
        mine = [version for version in versions if version.pool is pool]
        if pool.users > len(mine):
            return  # a load in progress needs them
        held = {replica.session.name for version in mine for replica in version.replicas}
        wanted = max((version.interpreters_wanted for version in mine), default=0)
        idle = [name for name in pool.names if name not in held]
        surplus = max(len(pool.names) - wanted, 0)
        self._dismiss(pool, idle[len(idle) - min(surplus, len(idle)) :])

    def ready(self, pool: InterpreterPool | None) -> list[InterpreterSession]:
        """Return the interpreters that can take a library of that pool, in order of name."""
        return [session for session in self._sessions.ready() if session.pool is pool]

    def explain_want(self, pool: InterpreterPool | None) -> tuple[str, str]:
        """Return why the pool will have no interpreter, and a remedy; "" if it has or will."""
        if any(session.pool is pool and session.alive for session in self._sessions.all()):
            return "", ""
        quarantined = self._supervisor.quarantined()
        names = (
            [name for name in self._supervisor.names if name not in self._by_name]
            if pool is None
            else pool.names
        )
        if any(name not in quarantined for name in names):
            return "", ""
        if names:
            revivals = ", ".join(f"`opdispatch revive {name}`" for name in names)
            return (
                f"every interpreter that could take it is quarantined: {', '.join(names)}",
                f"`opdispatch interpreters` shows why; start one again with {revivals}",
            )
        return (
            "no interpreter is connected that could hold it",
            "start one with `opdispatch worker`, or the daemon with --workers 1 or more",
        )

    def coming(self) -> set[str]:
        """Return the interpreters that are about to be ready.

        They are being started, or have connected and are receiving the publications.
        """
        joining = {each.name for each in self._sessions.all() if each.alive and not each.ready}
        ready = {each.name for each in self._sessions.ready()}
        return {*joining, *self._supervisor.names} - {*self._supervisor.quarantined()} - ready

    def check(self, session: InterpreterSession, pool: InterpreterPool | None) -> None:
        """Raise InterpreterNotFoundError if the interpreter takes no library of that pool."""
        if session.pool is not pool:
            only = session.pool.reserved_for if session.pool else "libraries of no environment"
            raise InterpreterNotFoundError(
                f"interpreter {session.name} is only for {only}", interpreter=session.name
            )

    def find(self, interpreter: str) -> InterpreterPool | None:
        """Return the pool that an interpreter of the daemon belongs to, by its name."""
        return self._by_name.get(interpreter)

    def names_for_all(self) -> list[str]:
        """Return the interpreters of no pool, live or about to be restarted."""
        quarantined = self._supervisor.quarantined()
        ours = [n for n in self._supervisor.names if self.find(n) is None and n not in quarantined]
        joined = [s.name for s in self._sessions.all() if s.pool is None and not s.supervised]
        return ours + joined

    def python_of(self, interpreter: str) -> Path | None:
        """Return the Python that the interpreter of that name runs; None means the daemon's own."""
        pool = self.find(interpreter)
        return pool.python if pool else None

    def ends_with(self, pools: list[InterpreterPool]) -> list[InterpreterSession]:
        """Return the interpreters that end when each of ``pools`` is closed once per occurrence."""
        return [
            session
            for session in self._sessions.all()
            if session.pool is not None and pools.count(session.pool) >= session.pool.users
        ]

    async def wait_for_endings(self) -> None:
        """Wait until interpreters of closed pools have ended."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _get(
        self, library: str, source: LibrarySource, environment: Environment | None
    ) -> InterpreterPool:
        if source.home.isolated:
            # Concurrent loads of one version share the key; other content makes another version.
            key, prefix = f"{library}\0{source}", f"{_name_part(library)}@"
            reserved_for = f"library {library}"
        else:
            assert environment is not None, "a home that is not shared is one of the two"
            key, prefix = environment.key, f"env-{environment.key[:8]}@"
            reserved_for = f"environment {environment.key[:8]}"
        pool = self._pools.get(key)
        if pool is None:
            python = environment.python if environment else None
            pool = self._pools[key] = InterpreterPool(key, reserved_for, prefix, python)
        return pool

    def _close(self, pool: InterpreterPool) -> None:
        """Remove a user of a pool; with the last user, its interpreters end."""
        pool.users -= 1
        if pool.users:
            return
        del self._pools[pool.key]
        self._dismiss(pool, pool.names)

    def _dismiss(self, pool: InterpreterPool, names: Iterable[str]) -> None:
        for name in list(names):
            pool.names.remove(name)
            session = self._sessions.find(name)
            if session is not None and session.pool is pool:
                session.dismissed = True
            task = asyncio.create_task(self._end(name))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(self, name: str) -> None:
        await self._supervisor.remove(name, END_GRACE)
        await self._sessions.wait_until_free(name, END_GRACE)
        await self.on_ended(name)
        del self._by_name[name]

    def _free_name(self, pool: InterpreterPool) -> str:
        taken = {*self._by_name, *(session.name for session in self._sessions.all())}
        names = (f"{pool.prefix}{number}" for number in itertools.count(1))
        return next(name for name in names if name not in taken)


async def _nothing(name: str) -> None:
    pass


def _ignore_step(line: str) -> None:
    """Ignore a report of building an environment that no caller awaits."""


def _name_part(library: str) -> str:
    """Return the part of a library's name that is valid in an interpreter's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", library)[:NAME_PART_LENGTH]
