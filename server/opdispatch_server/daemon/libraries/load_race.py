"""Concurrent loads of the same content under the same name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.event_loop.wake_up import WakeUp
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool


class LoadRace:
    """A race of equal loads, from the first one's arrival to the end of the last.

    It holds the line of its name while it runs, so that loads of other content wait. The first
    member whose batch is complete is published and becomes the primary; ``turn`` is held by the
    member that is being published or joined. For use in the event loop only.
    """

    def __init__(
        self,
        name: str,
        source: LibrarySource,
        pool: InterpreterPool | None,
    ) -> None:
        self.name = name
        self.source = source
        self.pool = pool
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()
        self.turn = asyncio.Lock()
        self.version: LibraryVersion
        self.replaced: LibraryVersion | None = None
        self._members = 0
        # Members that are choosing an interpreter or importing.
        self._importers = 0
        self._imports: dict[InterpreterSession, float] = {}
        self._changes = WakeUp()

    def open(self, version: LibraryVersion, replaced: LibraryVersion | None) -> None:
        """Begin the race: the name's line is held."""
        self.version = version
        self.replaced = replaced
        self.opened.set()

    def enter(self) -> None:
        """Add a member."""
        self._members += 1

    def leave(self) -> None:
        """Remove a member; without members, the race has ended."""
        self._members -= 1
        if not self._members:
            self.ended.set()
        self._changes.note()

    def begin_import(self) -> None:
        """Add a member that is about to import the library."""
        self._importers += 1

    def note_import(self, session: InterpreterSession) -> None:
        """Record that the import runs in that interpreter."""
        self._imports[session] = time.monotonic()

    def end_import(self, session: InterpreterSession | None = None) -> None:
        """Record that the import has ended, or has failed."""
        self._importers -= 1
        if session is not None:
            self._imports.pop(session, None)
        self._changes.note()

    async def wait_for_decision(self) -> bool:
        """Wait until the version is published or no member imports it; return whether published."""
        while not self.version.is_active and self._importers:
            await self._changes.wait()
        return self.version.is_active

    def describe_imports(self) -> str:
        """Return, in words, which interpreter is importing the version, and for how long."""
        now = time.monotonic()
        return " and ".join(
            f"interpreter {session.name} (pid {session.pid}), which has been importing it for "
            f"{now - since:.1f} s"
            for session, since in self._imports.items()
        )


class LoadWait:
    """The current wait of one load, described in the error when its time is up."""

    def __init__(self, what: str) -> None:
        self._describe: Callable[[], str] = lambda: what
        self.importing: InterpreterSession | None = None

    def set(self, describe: Callable[[], str]) -> None:
        """Set the description of the current wait."""
        self._describe = describe

    def __str__(self) -> str:
        return self._describe()
