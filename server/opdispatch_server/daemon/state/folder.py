"""A daemon's state folder: its lock, and the paths in it.

libraries/              uploads by their SHA-256 (library_store.py)
unpacked/               their files, for interpreters (unpacked_libraries.py)
journal/                what is loaded (journal_database.py)
journal.imported/       an import that is decided, and takes journal/'s place at next opening
journal.replaced-TIME/  what an import has replaced
owner.lock              held by the daemon, or by an import
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from opdispatch_server.daemon.state.journal_database import JournalDatabase
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.file_sync import sync_path
from opdispatch_server.library_code.library_store import DRAFT_PREFIX
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_server.lock_file import open_lock_file
from opdispatch_wire.errors import JournalError

_LOCK = "owner.lock"
_JOURNAL = "journal"
_IMPORTED = "journal.imported"
_REPLACED = "journal.replaced"


class StateFolder:
    """A state folder that this process owns until ``close``, or until the process dies."""

    def __init__(self, path: Path) -> None:
        """Lock the folder. Raises JournalError if another process owns it, or it cannot be used."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The lock is on the open file, so the system releases it however the process ends.
            self._lock = open_lock_file(path / _LOCK)
        except OSError as error:
            raise JournalError(
                f"the state folder {path} cannot be used: {error.strerror}",
                hint="choose another one with --state",
                path=str(path),
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise JournalError(
                f"another daemon uses the state folder {path}",
                hint="stop it, or choose another folder with --state",
                path=str(path),
            ) from error
        self._remove_drafts()
        self._finish_import()

    @property
    def libraries(self) -> Path:
        """The folder of the library store."""
        return libraries_in(self.path)

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return self.path / _JOURNAL

    def tell_take_over_socket(self, path: Path) -> None:
        """Write the path of this daemon's take-over socket into the lock file."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, os.fsencode(path), 0)

    def replaced_journals(self) -> list[Path]:
        """Return the journals that imports have set aside, oldest first."""
        return sorted(self.path.glob(f"{_REPLACED}-*"))

    def open_journal(self) -> JournalDatabase:
        """Open the folder's journal; create it in a folder that has none. Raises JournalError."""
        if not self.journal.exists():
            try:
                JournalDatabase.create(self.journal)
            except (OSError, sqlite3.Error) as error:
                raise JournalError(
                    f"no journal can be made in {self.path}: "
                    f"{getattr(error, 'strerror', None) or error}",
                    path=str(self.path),
                ) from error
        return JournalDatabase(self.journal, migrate=True)

    def take_import(self, draft: Path) -> Path | None:
        """Replace the existing journal by an imported one.

        ``draft`` is complete, on disk, and in this folder. A single rename decides; if this process
        dies after it, the next process that opens the folder does the rest. Returns where the old
        journal is now.
        """
        draft.rename(self.path / _IMPORTED)
        sync_path(self.path)
        fault_point(FaultPoint.IMPORT_DECIDED)
        return self._finish_import()

    def close(self) -> None:
        """Close the folder. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _remove_drafts(self) -> None:
        """Remove the temporary files of processes that died before they renamed them."""
        for pattern in ("*.draft-*", f"{libraries_in(self.path).name}/{DRAFT_PREFIX}*"):
            for path in self.path.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
        UnpackedLibraries(self.path / "unpacked").remove_drafts()

    def _finish_import(self) -> Path | None:
        imported = self.path / _IMPORTED
        if not imported.exists():
            return None
        aside = None
        if self.journal.exists():
            aside = self.path / f"{_REPLACED}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
            self.journal.rename(aside)
            fault_point(FaultPoint.IMPORT_ASIDE)
        imported.rename(self.journal)
        sync_path(self.path)
        return aside


def read_take_over_socket(state: Path) -> Path | None:
    """Return the take-over socket of the current or last daemon of ``state``; None if none."""
    try:
        path = (state / _LOCK).read_bytes()
    except OSError:
        return None
    return Path(os.fsdecode(path)) if path else None


def check_unused(state: Path) -> None:
    """Raise JournalError if a process without a take-over socket uses ``state``."""
    try:
        lock = open_lock_file(state / _LOCK, create=False)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(
            f"the daemon that uses the state folder {state} cannot be taken over: it has not "
            "started yet, or is of an older version",
            hint="stop it, then start this one; sessions wait meanwhile",
            path=str(state),
        ) from None
    finally:
        os.close(lock)


def libraries_in(state: Path) -> Path:
    """Return the library store's folder in a state folder."""
    return state / "libraries"


def journal_in(state: Path) -> Path:
    """Return the journal's folder in a state folder; reading the journal takes no lock."""
    return state / _JOURNAL


def check_journal(state: Path) -> None:
    """Raise JournalError if ``state`` has no journal, and so is not a daemon's folder."""
    if not journal_in(state).exists():
        raise JournalError(
            f"there is no journal in {state}", hint="say with --state where the daemon keeps it"
        )
