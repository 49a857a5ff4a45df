"""The journal as the daemon uses it: recorded first, undone on failure, owed if need be."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from opdispatch_server.daemon.state.journal import Journal, read_libraries
from opdispatch_server.daemon.state.journal_database import DATABASE, JournalDatabase
from opdispatch_server.daemon.state.journal_record import LibraryRecord
from opdispatch_wire.errors import JournalError

ONE = LibraryRecord("image", 1, 1)
TWO = LibraryRecord("image", 2, 2)


@asynccontextmanager
async def opened(state: Path) -> AsyncIterator[Journal]:
    journal = Journal(state)
    try:
        journal.open()
        yield journal
    finally:
        await journal.close()


def on_disk(state: Path) -> dict[str, LibraryRecord]:
    """Return the records as a process started now would read them."""
    with closing(JournalDatabase(state / "journal")) as file:
        return dict(read_libraries(file))


async def fail_on_full_disk(journal: Journal) -> None:
    """A change that fails when nothing can be written any more."""
    async with journal.recording("load v2", TWO):
        Disk(journal).fill()
        raise RuntimeError("died")


class Disk:
    """Fills the disk up, for the journal's next writes, and makes room again."""

    def __init__(self, journal: Journal) -> None:
        assert journal._file is not None
        self._database: sqlite3.Connection = journal._file._database

    def fill(self) -> None:
        self._database.execute("PRAGMA query_only = 1")

    def free(self) -> None:
        self._database.execute("PRAGMA query_only = 0")


async def test_a_change_is_on_disk_before_it_is_made(tmp_path: Path):
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            assert on_disk(tmp_path) == {"image": ONE}
        async with journal.recording("load v2", TWO):
            assert on_disk(tmp_path) == {"image": TWO}
    assert on_disk(tmp_path) == {"image": TWO}


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, JournalError])
async def test_a_change_that_fails_is_undone(tmp_path: Path, error: Any):
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            pass
        with pytest.raises(error):
            async with journal.recording("load v2", TWO):
                raise error("died")
        assert on_disk(tmp_path) == {"image": ONE}
        with pytest.raises(RuntimeError):
            async with journal.recording("load v1", LibraryRecord("other", 1, 1)):
                raise RuntimeError("died")
    assert on_disk(tmp_path) == {"image": ONE}


async def test_a_change_that_cannot_be_recorded_is_not_made(tmp_path: Path):
    async with opened(tmp_path) as journal:
        Disk(journal).fill()
        with pytest.raises(JournalError, match="cannot be recorded"):
            async with journal.recording("load v1", ONE):
                raise AssertionError("it was made")
        Disk(journal).free()
        async with journal.recording("load v1", ONE):
            pass
    assert on_disk(tmp_path) == {"image": ONE}


async def test_failed_undo_is_done_before_the_next_change(tmp_path: Path):
    other = LibraryRecord("other", 1, 1)
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            pass
        with pytest.raises(RuntimeError, match="died"):
            await fail_on_full_disk(journal)
        assert on_disk(tmp_path) == {"image": TWO}
        with pytest.raises(JournalError):
            async with journal.recording("load v1", other):
                pass
        Disk(journal).free()
        async with journal.recording("load v1", other):
            pass
        assert on_disk(tmp_path) == {"image": ONE, "other": other}


async def test_owed_undo_remains_if_the_next_change_is_cancelled(tmp_path: Path):
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            pass
        with pytest.raises(RuntimeError, match="died"):
            await fail_on_full_disk(journal)
        given_up = asyncio.create_task(journal.record_drained("worker-1", True))
        await asyncio.sleep(
            0
        )  # it has asked for the write, which fails when it is not awaited any more
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await asyncio.get_running_loop().run_in_executor(journal._writer, Disk(journal).free)
        await journal.record_drained("worker-2", True)
    assert on_disk(tmp_path) == {"image": ONE}


async def test_owed_undo_does_not_revert_a_later_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    three = LibraryRecord("image", 3, 3)
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            pass
        with pytest.raises(RuntimeError, match="died"):
            await fail_on_full_disk(journal)
        assert journal._file is not None
        write, disk = journal._file.write, Disk(journal)

        def fail_once(*args: Any) -> None:
            try:
                write(*args)
            finally:
                disk.free()

        monkeypatch.setattr(journal._file, "write", fail_once)
        # Both ask for their writes before the first one, which takes along what is owed, fails.
        drained = asyncio.create_task(journal.record_drained("worker-1", True))
        await asyncio.sleep(0)
        async with journal.recording("load v3", three):
            pass
        with pytest.raises(JournalError):
            await drained
        await journal.record_drained("worker-2", True)
    assert on_disk(tmp_path) == {"image": three}


async def test_later_failure_returns_to_the_state_after_the_owed_undo(tmp_path: Path):
    async with opened(tmp_path) as journal:
        async with journal.recording("load v1", ONE):
            pass
        with pytest.raises(RuntimeError, match="died"):
            await fail_on_full_disk(journal)
        Disk(journal).free()
        with pytest.raises(RuntimeError):
            async with journal.recording("load v3", LibraryRecord("image", 3, 3)):
                raise RuntimeError("died")
    assert on_disk(tmp_path) == {"image": ONE}


async def test_a_change_that_is_cancelled_while_it_is_written_is_undone(tmp_path: Path):
    async def change(journal: Journal) -> None:
        async with journal.recording("load v1", ONE):
            raise AssertionError("it was made")

    async with opened(tmp_path) as journal:
        for _ in range(20):
            task = asyncio.create_task(change(journal))
            await asyncio.sleep(0)  # it has asked for the write
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert on_disk(tmp_path) == {}


async def test_many_changes_at_once_are_all_recorded(tmp_path: Path):
    async def change(journal: Journal, number: int) -> None:
        for version in range(1, 6):
            async with journal.recording("load", LibraryRecord(f"n{number}", version, version)):
                await asyncio.sleep(0)

    async with opened(tmp_path) as journal:
        await asyncio.gather(*(change(journal, number) for number in range(10)))
    expected = {f"n{number}": LibraryRecord(f"n{number}", 5, 5) for number in range(10)}
    assert on_disk(tmp_path) == expected


async def test_drained_interpreters_are_remembered(tmp_path: Path):
    async with opened(tmp_path) as journal:
        await journal.record_drained("worker-1", True)
        await journal.record_drained("worker-2", True)
        await journal.record_drained("worker-1", False)
    async with opened(tmp_path) as journal:
        assert journal.drained == {"worker-2"}


async def test_a_folder_belongs_to_one_journal_at_a_time(tmp_path: Path):
    async with opened(tmp_path):
        with pytest.raises(JournalError, match="another daemon uses the state folder"):
            Journal(tmp_path).open()
    async with opened(tmp_path):
        pass


async def test_a_journal_that_is_closed_records_nothing(tmp_path: Path):
    async with opened(tmp_path) as journal:
        pass
    with pytest.raises(JournalError, match="the journal is closed"):
        await journal.record_drained("worker-1", True)


async def test_a_record_of_another_shape_is_refused(tmp_path: Path):
    async with opened(tmp_path) as journal:
        assert journal._file is not None
        journal._file.write("load", "image", {("library", "image"): "{}"})
    with pytest.raises(JournalError, match="says something of library 'image' that this"):
        Journal(tmp_path).open()


@pytest.mark.parametrize("content", [b"", b"no journal"])
async def test_a_damaged_journal_is_not_replaced_by_an_empty_one(tmp_path: Path, content: bytes):
    async with opened(tmp_path):
        pass
    (tmp_path / "journal" / DATABASE).write_bytes(content)
    for _ in range(2):
        with pytest.raises(JournalError, match="is damaged"):
            Journal(tmp_path).open()
    assert (tmp_path / "journal" / DATABASE).read_bytes() == content
