"""The journal on disk: a SQLite database, checked whole whenever it is opened.

Note [What the checks find]
    SQLite's own check finds a broken structure, but neither a changed byte inside a record nor
    a write-ahead log that ends early: frames from the first damaged one on are ignored as if
    they had never been written. So

    - each entry has a digest, and the head has one of all entries;
    - the number of the last event is also kept in a file of its own, ``last-event``, which is
      written after the event is on disk. After a crash it may be behind the journal; it is ahead of
      it only if the journal has lost an event.

    A journal that fails one of these checks is damaged, and nothing is served from it: an operator
    that is silently missing does more harm than a daemon that does not start.

Note [A journal that is taken away]
    An open file can still be written to when its name is gone or refers to another file: SQLite
    would commit, and the next daemon would find nothing. So every transaction, right before it
    commits, compares the files that have the journal's names with those that were opened.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree

from opdispatch_server.daemon.state.journal_format import NEW_JOURNAL, check_format
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.file_sync import sync_path, sync_tree
from opdispatch_wire.errors import JournalError

DATABASE = "journal.sqlite3"
LAST_EVENT = "last-event"

# Older events are dropped: events are for people to read, not for recovery.
EVENTS_KEPT = 10_000
_BUSY_SECONDS = 10.0

Changes = Mapping[tuple[str, str], str | None]
"""New records as text, by kind ("library") and name; None deletes the record."""


class JournalDatabase:
    """One open journal. Its methods block; one thread at a time may call them.

    ``entries`` is the committed state.
    """

    def __init__(self, folder: Path, *, migrate: bool = False) -> None:
        """Open the journal in ``folder``; with ``migrate``, convert it from an older format.

        Only the owner of the folder may do that. Raises JournalError if the journal is unreliable.
        """
        self.folder = folder
        path = folder / DATABASE
        with _damage_explained(folder):
            if not path.is_file():
                raise ValueError(f"{DATABASE} is missing")
            self._database = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                check_format(self._database, path, migrate=migrate)
                self._database.execute("PRAGMA journal_mode = WAL").fetchone()
                self._database.execute("PRAGMA synchronous = FULL")
                # Read first: a daemon may be adding events meanwhile.
                mark = int((folder / LAST_EVENT).read_bytes())
                self._database.execute("BEGIN")
                self.entries, self._number, self._digest = self._read_checked(mark)
                self._database.execute("COMMIT")
                self._opened = self._files()
            except BaseException:
                self._database.close()
                raise

    @classmethod
    def create(cls, folder: Path) -> None:
        """Create an empty journal in ``folder``, which must not exist, entirely or not at all.

        Raises OSError and sqlite3.Error.
        """
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.draft-"))
        try:
            database = sqlite3.connect(draft / DATABASE, isolation_level=None)
            try:
                database.executescript(NEW_JOURNAL)
            finally:
                database.close()
            (draft / LAST_EVENT).write_bytes(_mark(0))
            sync_tree(draft)
            draft.rename(folder)
        except BaseException:
            rmtree(draft, ignore_errors=True)
            raise
        sync_path(folder.parent)

    @property
    def last_event(self) -> int:
        """The number of the last event."""
        return self._number

    def write(self, kind: str, subject: str, changes: Changes) -> None:
        """Commit one event with the records that it changes; they are on disk on return.

        Raises JournalError, and then nothing has changed.
        """
        digest = self._digest
        for key, record in changes.items():
            digest = _exchange(digest, key, self.entries.get(key), record)
        number = self._number + 1
        at = datetime.now(UTC).isoformat()
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._execute("INSERT INTO event VALUES (?, ?, ?, ?)", number, at, kind, subject)
            self._execute("DELETE FROM event WHERE number <= ?", number - EVENTS_KEPT)
            for key, record in changes.items():
                self._execute("DELETE FROM entry WHERE kind = ? AND name = ?", *key)
                if record is not None:
                    own = _digest_entry(key, record)
                    self._execute("INSERT INTO entry VALUES (?, ?, ?, ?)", *key, record, own)
            self._execute("UPDATE head SET number = ?, digest = ?", number, f"{digest:064x}")
            fault_point(FaultPoint.JOURNAL_BEGUN)
            self.check_place()
            self._database.execute("COMMIT")
        except (sqlite3.Error, JournalError) as error:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                self._database.execute("ROLLBACK")
            if isinstance(error, JournalError):
                raise
            raise JournalError(
                f"the change cannot be recorded in {self.folder}: {error}",
                hint="nothing has changed; make room on that disk and try again",
            ) from error
        for key, record in changes.items():
            if record is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = record
        self._number, self._digest = number, digest
        self._write_mark()
        fault_point(FaultPoint.JOURNAL_COMMITTED)

    def check_place(self) -> None:
        """Raise JournalError unless the open files still are the journal in ``folder``.

        See Note [A journal that is taken away].
        """
        try:
            is_there = self._files() == self._opened
        except OSError:
            is_there = False
        if not is_there:
            raise JournalError(
                f"the journal in {self.folder} was deleted, moved or replaced while the daemon "
                "used it, so no change can be recorded",
                hint="nothing has changed; put the state folder back, or stop the daemon and "
                "start it again, without its libraries",
                path=str(self.folder),
            )

    def events(self) -> list[tuple[int, str, str, str]]:
        """Return the events, oldest first: number, time, kind and subject."""
        return list(self._database.execute("SELECT * FROM event ORDER BY number"))

    def copy_to(self, folder: Path) -> None:
        """Copy the journal into ``folder``, as one file, even while a daemon is writing."""
        with _damage_explained(self.folder), _database_at(folder / DATABASE) as copy:
            self._database.backup(copy)

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._database.close()

    def _files(self) -> list[tuple[int, int]]:
        """Return the identities of the files that now have the database's names. Raises OSError."""
        found = [(self.folder / name).stat() for name in (DATABASE, f"{DATABASE}-wal", LAST_EVENT)]
        return [(each.st_dev, each.st_ino) for each in found]

    def _execute(self, statement: str, *values: object) -> None:
        self._database.execute(statement, values)

    def _read_checked(self, mark: int) -> tuple[dict[tuple[str, str], str], int, int]:
        """Return the entries, the number of the last event, and the digest of all entries.

        Raises ValueError: see the Note.
        """
        found = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise ValueError(" ".join(str(found).split()))
        entries: dict[tuple[str, str], str] = {}
        for kind, name, record, digest in self._database.execute("SELECT * FROM entry"):
            if _digest_entry((kind, name), record) != digest:
                raise ValueError(f"what it says of {kind} {name!r} does not have its checksum")
            entries[kind, name] = record
        heads = self._database.execute("SELECT number, digest FROM head").fetchall()
        total = 0
        for key, record in entries.items():
            total = _exchange(total, key, None, record)
        if len(heads) != 1 or heads[0][1] != f"{total:064x}":
            raise ValueError("its entries do not have the checksum of all")
        number: int = heads[0][0]
        if mark > number:
            raise ValueError(f"it ends with event {number}, and event {mark} was recorded")
        return entries, number, total

    def _write_mark(self) -> None:
        # Not synced: after a loss of power it may be old, which the checks allow. The same holds if
        # writing it fails.
        with suppress(OSError):
            descriptor = os.open(self.folder / LAST_EVENT, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, _mark(self._number), 0)
            finally:
                os.close(descriptor)


@contextmanager
def _damage_explained(folder: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the file system to a JournalError with a hint."""
    try:
        yield
    except JournalError:
        raise
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        raise JournalError(
            f"the journal in {folder} is damaged or cannot be read: {error}",
            hint="restore it with `opdispatch state import FILE`, or move the folder away to "
            "start without libraries",
            path=str(folder),
        ) from error


@contextmanager
def _database_at(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that is closed at the end of the block.

    The context manager of sqlite3 itself does not close it.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _mark(number: int) -> bytes:
    return b"%020d\n" % number  # of constant length, so that a write replaces all of it


def _digest_entry(key: tuple[str, str], record: str) -> str:
    return hashlib.sha256("\0".join((*key, record)).encode()).hexdigest()


def _exchange(digest: int, key: tuple[str, str], old: str | None, new: str | None) -> int:
    """Return the digest of all entries after one of them changes.

    It is the sum of the entries' digests, so that a change costs the same for any number of
    entries.
    """
    for record, sign in ((old, -1), (new, 1)):
        if record is not None:
            digest += sign * int(_digest_entry(key, record), 16)
    return digest % 2**256
