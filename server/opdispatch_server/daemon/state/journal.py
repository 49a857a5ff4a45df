"""The daemon's journal: every change of the registry, on disk before it is visible.

Note [What is acknowledged]
    A change is recorded after every check that could refuse it, before any interpreter or the
    daemon publishes it, and so before the caller is answered:

        check    ->    record    ->    publish    ->    answer

    A daemon that is killed before the record is committed restarts without the change; one that is
    killed after it restarts with all of the change. So nothing that was acknowledged is lost, no
    client sees a state that a later client does not find, and a change that was not acknowledged is
    applied entirely or not at all.

    Should publishing fail after all, because the interpreter died at that moment, another record
    undoes the first. If the disk does not accept that record either, the journal stays ahead of the
    registry; the undoing record is then owed, and committed together with the next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.state.folder import StateFolder
from opdispatch_server.daemon.state.journal_database import Changes, JournalDatabase
from opdispatch_server.daemon.state.journal_record import (
    LibraryRecord,
    library_record_from_text,
    library_record_to_text,
)
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import JournalError

LOG = logging.getLogger("opdispatch.journal")

LIBRARY = "library"
DRAINED = "drained interpreter"


class Journal:
    """The journal as the event loop sees it; one thread of its own accesses the file.

    The registry makes sure that two changes of one name never overlap. Changes of different names
    may.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._folder: StateFolder | None = None
        self._file: JournalDatabase | None = None
        # The state of the registry, and the part of it that is not in the file yet: see the Note.
        self._current: dict[tuple[str, str], str | None] = {}
        self._owed: dict[tuple[str, str], str | None] = {}

    def open(self) -> Mapping[str, LibraryRecord]:
        """Lock the state folder and read its journal: every library's record, by name.

        Blocks. Raises JournalError if another daemon owns the folder, or the journal is unreliable.
        """
        with ExitStack() as stack:
            folder = StateFolder(self._state)
            stack.callback(folder.close)
            file = folder.open_journal()
            stack.callback(file.close)
            libraries = read_libraries(file)
            stack.pop_all()  # from now on ``close`` closes it
        self._folder, self._file = folder, file
        self._current = dict(file.entries)
        return libraries

    @property
    def drained(self) -> frozenset[str]:
        """The interpreters that are drained."""
        found = self._current.items()
        return frozenset(name for (kind, name), text in found if kind == DRAINED and text)

    @asynccontextmanager
    async def recording(self, event: str, record: LibraryRecord) -> AsyncIterator[None]:
        """Record the change that the body of ``with`` makes to a library.

        Undo it if the body raises.

        Nothing is written if the journal already says so and is intact. ``event`` names the change
        for people: "load v2". Raises JournalError before the body runs, if the disk refuses.
        """
        key = (LIBRARY, record.name)
        before = self._current.get(key)
        after = library_record_to_text(record)
        recorded = False
        try:
            if after != before:
                await self._write(event, record.name, {key: after})
            else:
                await self._check_place(event, record.name)
            recorded = True
            yield
        except BaseException as error:
            # Cancelled while it was being written: the undoing record is next in the writer's
            # queue.
            if recorded or not isinstance(error, JournalError):
                await self._undo(event, record.name, {key: before})
            raise

    async def record_drained(self, interpreter: str, drained: bool) -> None:
        """Record that an interpreter is drained, or no longer is."""
        change = {(DRAINED, interpreter): "{}" if drained else None}
        await self._write("drain" if drained else "undo drain", interpreter, change)

    async def release(self) -> None:
        """Unlock the folder once everything is written, and refuse changes until ``reopen``."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._close_files)

    async def reopen(self) -> None:
        """Lock the folder again after ``release``.

        Raises JournalError while another process owns it, or if that process has changed the
        journal.
        """
        await asyncio.get_running_loop().run_in_executor(self._writer, self._reopen)

    def tell_take_over_socket(self, path: Path) -> None:
        """Write the path of this daemon's take-over socket into the folder."""
        if self._folder is not None:
            self._folder.tell_take_over_socket(path)

    def _close_files(self) -> None:
        file, self._file = self._file, None
        folder, self._folder = self._folder, None
        if file is not None:
            file.close()
        if folder is not None:
            folder.close()

    def _reopen(self) -> None:
        folder = StateFolder(self._state)
        try:
            file = folder.open_journal()
            if file.entries != {key: text for key, text in self._current.items() if text}:
                file.close()
                raise JournalError("another daemon has changed the journal")
        except BaseException:
            folder.close()
            raise
        self._folder, self._file = folder, file

    async def close(self) -> None:
        """Wait until pending changes are written, then unlock the folder. Idempotent."""
        file, self._file = self._file, None
        await asyncio.to_thread(self._writer.shutdown)
        if file is not None:
            file.close()
        if self._folder is not None:
            self._folder.close()

    async def _undo(self, event: str, subject: str, changes: Changes) -> None:
        if self._file is None:
            return  # the daemon is stopping: the change was never acknowledged
        try:
            await self._write(f"undo {event}", subject, changes)
        except JournalError as error:
            self._current.update(changes)
            self._owed.update(changes)
            LOG.error(
                "%s of %s failed and stays in the journal for now: %s",
                event,
                subject,
                error,
                extra=fields(Event.JOURNAL_FAILED),
            )

    async def _check_place(self, event: str, subject: str) -> None:
        file = self._open_file(event, subject)
        await asyncio.get_running_loop().run_in_executor(self._writer, file.check_place)

    def _open_file(self, event: str, subject: str) -> JournalDatabase:
        if self._file is None:
            raise JournalError(f"{event} of {subject} cannot be recorded: the journal is closed")
        return self._file

    async def _write(self, event: str, subject: str, changes: Changes) -> None:
        file = self._open_file(event, subject)
        owed, self._owed = self._owed, {}
        writing = asyncio.get_running_loop().run_in_executor(
            self._writer, file.write, event, subject, {**owed, **changes}
        )

        def note(written: asyncio.Future[None]) -> None:
            if written.exception() is None:
                self._current.update(changes)
                self._owed = {key: text for key, text in self._owed.items() if key not in changes}
            else:
                self._owed = {**owed, **self._owed}

        # The waiting task may give up. The write continues nonetheless, and its outcome is noted.
        writing.add_done_callback(note)
        await shielded(writing)


def read_libraries(file: JournalDatabase) -> Mapping[str, LibraryRecord]:
    """Read every library's record, by name. Raises JournalError for an invalid one."""
    records = {}
    for (kind, name), text in file.entries.items():
        if kind == LIBRARY:
            try:
                records[name] = library_record_from_text(name, text)
            except ValueError as error:
                raise JournalError(
                    f"the journal in {file.folder} says something of library {name!r} that this "
                    f"opdispatch does not understand: {error}",
                    hint="restore it with `opdispatch state import FILE`, or move the folder away "
                    "to start without libraries",
                ) from error
    return records


def uploads_of(libraries: Iterable[LibraryRecord]) -> list[str]:
    """Return the SHA-256 of every upload from which one of the libraries is loaded, in order."""
    sources = {version.source for library in libraries for version in library.versions}
    return sorted({source.sha256 for source in sources if not source.is_module})
