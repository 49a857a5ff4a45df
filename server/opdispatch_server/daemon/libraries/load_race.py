"""Loads of one name and one content that are under way together."""

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
    """Racing loads, from the first one's arrival to the end of the last one.

    It holds the line of its name while it runs, so that other content waits for its turn. The
    first member whose batch is complete is published and becomes the primary; ``turn`` is held
    by the one that is being published or joined. Belongs to the event loop.
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
        # Those that are choosing an interpreter or importing.
        self._importers = 0
        self._imports: dict[InterpreterSession, float] = {}
        self._changes = WakeUp()

    def open(self, version: LibraryVersion, replaced: LibraryVersion | None) -> None:
        """Begin: it is this name's turn."""
        self.version = version
        self.replaced = replaced
        self.opened.set()

    def enter(self) -> None:
        """Add a member."""
        self._members += 1

    def leave(self) -> None:
        """Remove a member; without any, the race has ended."""
        self._members -= 1
        if not self._members:
            self.ended.set()
        self._changes.note()

    def begin_import(self) -> None:
        """Add a member that is going to import the library."""
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
        """Wait until the version is published, or no member imports it any more.

        Whether it is published.
        """
        while not self.version.is_active and self._importers:
            await self._changes.wait()
        return self.version.is_active

    def describe_imports(self) -> str:
        """Return which interpreter is importing it, and for how long, in words."""
        now = time.monotonic()
        return " and ".join(
            f"interpreter {session.name} (pid {session.pid}), which has been importing it for "
            f"{now - since:.1f} s"
            for session, since in self._imports.items()
        )


class LoadWait:
    """The current wait of one load, for the error when its time is up."""

    def __init__(self, what: str) -> None:
        self._describe: Callable[[], str] = lambda: what
        self.importing: InterpreterSession | None = None

    def set(self, describe: Callable[[], str]) -> None:
        """Set what it waits for."""
        self._describe = describe

    def __str__(self) -> str:
        return self._describe()
