"""The journal's format: its tables, the number that a database carries, and the migrations.

A new format is a new number in ``FORMAT``, new tables in ``NEW_JOURNAL``, and in ``_MIGRATIONS``
the step to it from the one before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from opdispatch_wire.errors import JournalError

APPLICATION_ID = 0x6F70646A  # "opdj"
FORMAT = 1

# Nothing reads it before all of it is synced, so no statement has to be.
NEW_JOURNAL = f"""
PRAGMA synchronous = OFF;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE event (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL
);
CREATE TABLE entry (
    kind TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE TABLE head (number INTEGER NOT NULL, digest TEXT NOT NULL);
INSERT INTO head VALUES (0, '{0:064x}');
COMMIT;
"""

_MIGRATIONS: Mapping[int, str] = {}
"""The statements that migrate each format to the next one."""


def check_format(database: sqlite3.Connection, path: Path, *, migrate: bool) -> None:
    """Check that the database at ``path`` has this format; an older one, with ``migrate``, gets it.

    Raises ValueError if it is not a journal, and JournalError if this opdispatch cannot use it.
    """
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (written_in,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise ValueError(f"{path.name} is not a journal of opdispatch")
    if written_in > FORMAT:
        raise JournalError(
            f"the journal in {path.parent} was written by a newer opdispatch: its format is "
            f"{written_in}, and this one reads up to {FORMAT}",
            hint="start the newer one, or move the folder away to start without libraries",
        )
    if written_in < FORMAT and not migrate:
        raise JournalError(
            f"the journal in {path.parent} was written by an older opdispatch: its format is "
            f"{written_in}, and this one writes {FORMAT}",
            hint="use the opdispatch that runs the daemon, or start a daemon of this one on it",
        )
    for number in range(written_in, FORMAT):
        # One transaction each: killed within it, the journal is of the format before.
        step = f"{_MIGRATIONS[number]}; PRAGMA user_version = {number + 1}"
        database.executescript(f"BEGIN IMMEDIATE; {step}; COMMIT")
