"""The journal on disk: what is committed is read again, and damage is always found."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from opdispatch_server.daemon.state.journal_database import DATABASE, LAST_EVENT, JournalDatabase
from opdispatch_wire.errors import JournalError

KEY = ("library", "image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty journal."""
    JournalDatabase.create(tmp_path / "journal")
    return tmp_path / "journal"


def written(folder: Path, changes: int = 3) -> Path:
    with closing(JournalDatabase(folder)) as journal:
        for number in range(changes):
            journal.write("load", "image", {KEY: f'"{number}"'})
    return folder


def test_written_entries_are_read_again(folder: Path):
    with closing(JournalDatabase(folder)) as journal:
        assert (journal.entries, journal.last_event) == ({}, 0)
        journal.write("load", "image", {KEY: "1", ("drained", "w"): "{}"})
        journal.write("undo drain", "w", {("drained", "w"): None})
    with closing(JournalDatabase(folder)) as journal:
        assert (journal.entries, journal.last_event) == ({KEY: "1"}, 2)
        events = [(number, kind, subject) for number, _, kind, subject in journal.events()]
        assert events == [(1, "load", "image"), (2, "undo drain", "w")]


def test_opening_a_new_journal_writes_nothing_to_it(folder: Path):
    new = (folder / DATABASE).read_bytes()
    JournalDatabase(folder).close()
    assert (folder / DATABASE).read_bytes() == new


def test_closed_journal_leaves_no_write_ahead_log(folder: Path):
    assert {path.name for path in written(folder).iterdir()} == {DATABASE, LAST_EVENT}


def test_a_change_is_on_disk_when_write_returns(folder: Path, tmp_path: Path):
    with closing(JournalDatabase(folder)) as journal:
        journal.write("load", "image", {KEY: "1"})
        # What a process that is killed now would leave behind.
        shutil.copytree(folder, tmp_path / "killed")
    with closing(JournalDatabase(tmp_path / "killed")) as journal:
        assert journal.entries == {KEY: "1"}


def test_old_events_are_dropped_and_entries_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("opdispatch_server.daemon.state.journal_database.EVENTS_KEPT", 5)
    with closing(JournalDatabase(written(folder, 12))) as journal:
        assert [number for number, *_ in journal.events()] == [8, 9, 10, 11, 12]
        assert journal.entries == {KEY: '"11"'}


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_journal_that_is_cut_off_is_refused(folder: Path, size: int):
    with (written(folder) / DATABASE).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(JournalError, match="is damaged") as caught:
        JournalDatabase(folder)
    assert "opdispatch state import" in caught.value.hint


def test_a_file_that_is_no_database_is_refused(folder: Path):
    (folder / DATABASE).write_bytes(b"my notes\n" * 1000)
    with pytest.raises(JournalError, match="file is not a database"):
        JournalDatabase(folder)


@pytest.mark.parametrize("file", [DATABASE, LAST_EVENT])
def test_a_journal_of_which_a_file_is_missing_is_refused(folder: Path, file: str):
    (written(folder) / file).unlink()
    with pytest.raises(JournalError, match="damaged or cannot be read"):
        JournalDatabase(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET record = 'else'",
        "DELETE FROM entry",
        "UPDATE head SET number = 99999999, digest = 'x'",
        "DELETE FROM head",
    ],
)
def test_a_record_that_was_changed_is_noticed(folder: Path, statement: str):
    with closing(sqlite3.connect(written(folder) / DATABASE)) as database, database:
        database.execute(statement)
    with pytest.raises(JournalError, match="checksum"):
        JournalDatabase(folder)


def test_a_log_that_lost_its_end_is_noticed(folder: Path, tmp_path: Path):
    killed = tmp_path / "killed"
    with closing(JournalDatabase(folder)) as journal:
        for number in range(5):
            journal.write("load", "image", {KEY: str(number)})
        shutil.copytree(folder, killed)
    log = killed / f"{DATABASE}-wal"
    content = bytearray(log.read_bytes())
    content[-100] ^= 1  # SQLite takes the log to end before this frame
    log.write_bytes(content)
    with pytest.raises(JournalError, match="it ends with event 4, and event 5 was recorded"):
        JournalDatabase(killed)


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_never_changes_what_is_read(folder: Path, seed: int):
    rng = random.Random(seed)
    with closing(JournalDatabase(folder)) as journal:
        journal.write("load", "image", {("library", f"n{n}"): "x" * 500 for n in range(20)})
        entries = dict(journal.entries)
    path = folder / DATABASE
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    # It may be in what nothing depends on.
    with suppress(JournalError), closing(JournalDatabase(folder)) as journal:
        assert journal.entries == entries


def test_a_disk_that_is_full_changes_nothing(folder: Path):
    with closing(JournalDatabase(written(folder))) as journal:
        journal._database.execute("PRAGMA max_page_count = 8")
        with pytest.raises(JournalError, match=r"cannot be recorded .*: database or disk is full"):
            journal.write("load", "big", {("library", "big"): "x" * 100_000})
        assert (journal.entries, journal.last_event) == ({KEY: '"2"'}, 3)
        journal.write("load", "image", {KEY: "4"})
    with closing(JournalDatabase(folder)) as journal:
        assert (journal.entries, journal.last_event) == ({KEY: "4"}, 4)


def test_a_journal_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opdispatch_server.daemon.state.journal_database.sync_tree", fail)
    with pytest.raises(OSError, match="No space left"):
        JournalDatabase.create(tmp_path / "journal")
    assert list(tmp_path.iterdir()) == []


def replace_by_copy(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize("name", [DATABASE, f"{DATABASE}-wal", LAST_EVENT])
@pytest.mark.parametrize("take", [Path.unlink, replace_by_copy])
def test_a_file_that_is_taken_away_is_noticed_before_a_change(folder: Path, name: str, take):
    with closing(JournalDatabase(folder)) as journal:
        journal.write("load", "image", {KEY: "1"})
        take(folder / name)
        for _ in range(2):
            with pytest.raises(JournalError, match="was deleted, moved or replaced"):
                journal.write("load", "image", {KEY: "2"})
            with pytest.raises(JournalError, match="was deleted, moved or replaced"):
                journal.check_place()
        assert (journal.entries, journal.last_event) == ({KEY: "1"}, 1)


def test_a_folder_that_comes_back_can_be_written_to_again(folder: Path, tmp_path: Path):
    with closing(JournalDatabase(folder)) as journal:
        journal.write("load", "image", {KEY: "1"})
        folder.rename(tmp_path / "moved")
        with pytest.raises(JournalError, match="nothing has changed"):
            journal.write("load", "image", {KEY: "2"})
        JournalDatabase.create(folder)  # as a daemon does that is started there
        with pytest.raises(JournalError):
            journal.write("load", "image", {KEY: "2"})
        shutil.rmtree(folder)
        (tmp_path / "moved").rename(folder)
        journal.write("load", "image", {KEY: "3"})
    with closing(JournalDatabase(folder)) as journal:
        assert (journal.entries, journal.last_event) == ({KEY: "3"}, 2)
