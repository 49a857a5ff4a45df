"""Environments that no library needs: removed when asked, with what the others serve."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.environments.library_home import LibraryHome
from opdispatch_server.daemon.environments.store import find_key
from opdispatch_server.daemon.state.folder import StateFolder
from opdispatch_server.daemon.state.journal import LIBRARY
from opdispatch_server.daemon.state.journal_database import DATABASE
from opdispatch_server.daemon.state.journal_record import (
    LibraryRecord,
    VersionRecord,
    library_record_to_text,
)
from opdispatch_server.daemon.state.unused_environments import remove_unused_environments
from opdispatch_wire.errors import JournalError

SCIPY, SHAPELY = LibraryHome(("scipy",)), LibraryHome(("shapely==2",))
UNKNOWN = "0" * 32


def record(state: Path, name: str, *homes: LibraryHome) -> None:
    """Record in the journal that the library has versions with these homes."""
    with closing(StateFolder(state)) as folder, closing(folder.open_journal()) as journal:
        versions = tuple(
            VersionRecord(number, LibrarySource("c.py", "", home=home), datetime.now(UTC))
            for number, home in enumerate(homes, start=1)
        )
        text = library_record_to_text(LibraryRecord(name, 9, 1, len(homes), versions))
        journal.write("load", name, {(LIBRARY, name): text})


def make_environment(state: Path, key: str) -> Path:
    """An environment as the store makes it: a link, and the folder that it leads to."""
    folder = state / "environments" / f"{key}.abc"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_bytes(b"x" * 10_000)
    (state / "environments" / key).symlink_to(folder.name)
    return folder


def test_environment_that_no_version_needs_is_removed(tmp_path: Path):
    record(tmp_path, "shapes", SHAPELY, SCIPY)
    record(tmp_path, "waves", SCIPY)
    kept = {make_environment(tmp_path, find_key(home)) for home in (SCIPY, SHAPELY)}
    gone = make_environment(tmp_path, UNKNOWN)
    (tmp_path / "environments" / "README").write_text("another's")

    looked_at = remove_unused_environments(tmp_path, dry_run=True)
    assert gone.exists()
    found = remove_unused_environments(tmp_path)
    assert looked_at == found
    assert {each.key: each.serves for each in found} == {
        UNKNOWN: (),
        find_key(SHAPELY): ("shapes v1",),
        find_key(SCIPY): ("shapes v2", "waves v1"),
    }
    assert all(each.size >= 10_000 for each in found)
    links = {path.name for path in (tmp_path / "environments").iterdir() if path.is_symlink()}
    assert links == {find_key(SHAPELY), find_key(SCIPY)}
    assert {path for path in kept if path.exists()} == kept
    assert not gone.exists()
    assert (tmp_path / "environments" / "README").exists()


def test_state_without_environments_has_none_to_remove(tmp_path: Path):
    record(tmp_path, "waves", SCIPY)
    assert remove_unused_environments(tmp_path) == []


@pytest.mark.parametrize("trouble", ["a daemon", "a damaged journal"])
def test_environments_stay_if_the_journal_cannot_be_read(tmp_path: Path, trouble: str):
    record(tmp_path, "waves", SCIPY)
    folder = make_environment(tmp_path, UNKNOWN)
    if trouble == "a daemon":
        with closing(StateFolder(tmp_path)), pytest.raises(JournalError, match="another daemon"):
            remove_unused_environments(tmp_path)
    else:
        (tmp_path / "journal" / DATABASE).write_bytes(b"this is no database")
        with pytest.raises(JournalError, match="damaged"):
            remove_unused_environments(tmp_path)
    assert folder.exists()
