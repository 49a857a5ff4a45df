"""The format of a journal: another program's or a newer one is refused, an older one migrated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from opdispatch_server.daemon.state import journal_format
from opdispatch_server.daemon.state.journal_database import DATABASE, JournalDatabase
from opdispatch_wire.errors import JournalError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal with an entry."""
    folder = tmp_path / "journal"
    JournalDatabase.create(folder)
    with closing(JournalDatabase(folder)) as journal:
        journal.write("load", "image", {("library", "image"): "{}"})
    return folder


def test_a_database_of_another_program_is_refused(folder: Path):
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA application_id = 7")
    with pytest.raises(JournalError, match="is not a journal of opdispatch"):
        JournalDatabase(folder)


def test_a_journal_of_a_newer_format_is_refused_and_says_so(folder: Path):
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(JournalError, match="written by a newer opdispatch: its format is 2"):
        JournalDatabase(folder)


def test_older_format_is_brought_up_by_the_owner_of_the_folder_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    with closing(JournalDatabase(folder)) as journal:
        entries = dict(journal.entries)
    steps = {1: "CREATE TABLE owner (name TEXT)", 2: "INSERT INTO owner VALUES ('one')"}
    monkeypatch.setattr(journal_format, "FORMAT", 3)
    monkeypatch.setattr(journal_format, "_MIGRATIONS", steps)
    with pytest.raises(JournalError, match="written by an older opdispatch: its format is 1"):
        JournalDatabase(folder)
    for _ in range(2):
        with closing(JournalDatabase(folder, migrate=True)) as journal:
            assert journal.entries == entries
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        assert database.execute("SELECT name FROM owner").fetchall() == [("one",)]


def test_migration_that_fails_leaves_the_format_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(journal_format, "FORMAT", 2)
        patch.setattr(
            journal_format, "_MIGRATIONS", {1: "CREATE TABLE owner (name); INSERT INTO no"}
        )
        with pytest.raises(JournalError, match="damaged or cannot be read"):
            JournalDatabase(folder, migrate=True)
    JournalDatabase(folder).close()
