"""Uploads that nothing is loaded from: removed when asked, and never one that is needed."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.state.archive import export_state, import_state
from opdispatch_server.daemon.state.folder import StateFolder, libraries_in
from opdispatch_server.daemon.state.journal import LIBRARY
from opdispatch_server.daemon.state.journal_database import DATABASE
from opdispatch_server.daemon.state.journal_record import (
    LibraryRecord,
    VersionRecord,
    library_record_to_text,
)
from opdispatch_server.daemon.state.unused_uploads import RemovedUploads, remove_unused_uploads
from opdispatch_server.library_code.digest import digest_content
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_wire.errors import JournalError

OLD, NEWER, NEWEST = b"x = 1\n", b"x = 22\n", b"x = 333\n"


def record(state: Path, *versions: bytes) -> None:
    """Store each content, and have the journal say that library "const" is loaded from them."""
    with closing(StateFolder(state)) as folder, closing(folder.open_journal()) as journal:
        store = LibraryStore(folder.libraries)
        loaded = tuple(
            VersionRecord(number, LibrarySource("c.py", store.put(text)), datetime.now(UTC))
            for number, text in enumerate(versions, start=1)
        )
        text = library_record_to_text(LibraryRecord("const", 9, 1, len(loaded), loaded))
        journal.write("load", "const", {(LIBRARY, "const"): text})


def stored(state: Path) -> set[bytes]:
    return {path.read_bytes() for path in libraries_in(state).iterdir()}


def test_upload_without_a_loaded_version_is_removed(tmp_path: Path):
    record(tmp_path, OLD)
    record(tmp_path, NEWER, NEWEST)
    assert stored(tmp_path) == {OLD, NEWER, NEWEST}
    assert remove_unused_uploads(tmp_path) == RemovedUploads(1, len(OLD), 2)
    assert stored(tmp_path) == {NEWER, NEWEST}
    assert remove_unused_uploads(tmp_path) == RemovedUploads(0, 0, 2)


def test_unpacked_folder_is_removed_with_its_upload(tmp_path: Path):
    record(tmp_path, OLD, NEWER)
    store = LibraryStore(libraries_in(tmp_path))
    digests = [digest_content(text) for text in (OLD, NEWER)]
    old, newer = (store.unpack(digest, "c.py") for digest in digests)
    part = store.begin("0" * 64, 100, "c.zip")
    store.append(part, b"12345", "c.zip")
    record(tmp_path, NEWER)
    assert remove_unused_uploads(tmp_path, dry_run=True) == RemovedUploads(1, 2 * len(OLD), 1)
    part.close()  # until then, the upload is under way
    freed = RemovedUploads(1, 2 * len(OLD) + 5, 1)
    assert remove_unused_uploads(tmp_path, dry_run=True) == freed
    assert old.exists()
    assert remove_unused_uploads(tmp_path) == freed
    assert (old.exists(), newer.exists()) == (False, True)
    assert stored(tmp_path) == {NEWER}


def test_all_goes_when_nothing_is_loaded(tmp_path: Path):
    record(tmp_path, OLD, NEWER)
    record(tmp_path)
    assert remove_unused_uploads(tmp_path) == RemovedUploads(2, len(OLD + NEWER), 0)


def test_a_state_without_uploads_has_none_to_remove(tmp_path: Path):
    with closing(StateFolder(tmp_path)) as folder:
        folder.open_journal().close()
    assert remove_unused_uploads(tmp_path) == RemovedUploads(0, 0, 0)


def test_upload_of_a_replaced_journal_is_kept(tmp_path: Path):
    state, archive = tmp_path / "state", tmp_path / "backup.zip"
    record(state, NEWEST)
    export_state(state, archive)
    record(state, NEWER)
    import_state(archive, state)
    assert remove_unused_uploads(state) == RemovedUploads(0, 0, 2)
    assert stored(state) == {NEWER, NEWEST}


@pytest.mark.parametrize("which", ["journal", "journal.replaced-*"])
def test_uploads_stay_if_a_journal_is_damaged(tmp_path: Path, which: str):
    state, archive = tmp_path / "state", tmp_path / "backup.zip"
    record(state, OLD)
    record(state, NEWER)
    export_state(state, archive)
    import_state(archive, state)
    (damaged,) = state.glob(which)
    (damaged / DATABASE).write_bytes(b"this is no database")
    with pytest.raises(JournalError, match="damaged") as caught:
        remove_unused_uploads(state)
    assert str(damaged) in str(caught.value)
    assert stored(state) == {OLD, NEWER}


def test_other_files_are_not_removed(tmp_path: Path):
    record(tmp_path, OLD)
    (libraries_in(tmp_path) / "notes.txt").write_text("not ours")
    assert remove_unused_uploads(tmp_path) == RemovedUploads(0, 0, 1)
    assert (libraries_in(tmp_path) / "notes.txt").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path):
    record(tmp_path, OLD)
    record(tmp_path)
    with (
        closing(StateFolder(tmp_path)),
        pytest.raises(JournalError, match="another daemon uses the state folder"),
    ):
        remove_unused_uploads(tmp_path)
    assert stored(tmp_path) == {OLD}


def test_a_folder_without_a_journal_is_no_state_folder(tmp_path: Path):
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "novel.txt").write_text("chapter 1")
    with pytest.raises(JournalError, match="there is no journal in"):
        remove_unused_uploads(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"libraries"}
