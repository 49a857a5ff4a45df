"""A state folder as one file: it comes back as it was, or not at all."""

from __future__ import annotations

import json
import os
import resource
import zipfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.state.archive import MANIFEST, export_state, import_state
from opdispatch_server.daemon.state.folder import StateFolder, libraries_in
from opdispatch_server.daemon.state.journal import LIBRARY, read_libraries
from opdispatch_server.daemon.state.journal_database import DATABASE
from opdispatch_server.daemon.state.journal_record import (
    LibraryRecord,
    VersionRecord,
    library_record_to_text,
)
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_wire.errors import JournalError, LibraryLoadError

Members = dict[str, bytes]


def fill(state: Path, text: bytes = b"x = 1\n") -> LibraryRecord:
    """Record one library with its content in a state folder; a module, too."""
    with closing(StateFolder(state)) as folder, closing(folder.open_journal()) as journal:
        digest = LibraryStore(folder.libraries).put(text)
        now = datetime.now(UTC)
        versions = (
            VersionRecord(1, LibrarySource("some.module", "00", True), now),
            VersionRecord(
                2, LibrarySource("image.py", digest), now, ("image::f",), True, {"on": "cpu"}
            ),
        )
        record = LibraryRecord("image", 2, 1, 2, versions)
        journal.write("load", "image", {(LIBRARY, "image"): library_record_to_text(record)})
    return record


def contents(state: Path) -> tuple[object, list[bytes]]:
    with closing(StateFolder(state)) as folder, closing(folder.open_journal()) as journal:
        stored = [path.read_bytes() for path in sorted(libraries_in(state).glob("*"))]
        return read_libraries(journal), stored


def test_an_export_comes_back_in_an_empty_folder(tmp_path: Path):
    record = fill(tmp_path / "old")
    summary = export_state(tmp_path / "old", tmp_path / "backup.zip")
    assert (summary.libraries, summary.contents, summary.last_event) == (1, 1, 1)
    summary = import_state(tmp_path / "backup.zip", tmp_path / "new")
    assert (summary.libraries, summary.replaced) == (1, None)
    assert contents(tmp_path / "new") == contents(tmp_path / "old")
    assert contents(tmp_path / "new")[0] == {"image": record}
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"journal", "libraries", "owner.lock"}


def test_an_export_is_made_while_the_folder_is_in_use(tmp_path: Path):
    fill(tmp_path / "old")
    with (
        closing(StateFolder(tmp_path / "old")) as folder,
        closing(folder.open_journal()) as journal,
    ):
        journal.write("drain", "w", {("drained", "w"): "{}"})
        assert export_state(tmp_path / "old", tmp_path / "backup.zip").last_event == 2
        journal.write("drain", "v", {("drained", "v"): "{}"})
    assert {path.name for path in tmp_path.iterdir()} == {"old", "backup.zip"}


def test_an_import_keeps_what_it_replaces_beside_it(tmp_path: Path):
    fill(tmp_path / "old")
    export_state(tmp_path / "old", tmp_path / "backup.zip")
    other = fill(tmp_path / "new", b"y = 2\n")
    summary = import_state(tmp_path / "backup.zip", tmp_path / "new")
    assert contents(tmp_path / "new")[0] != {"image": other}
    assert summary.replaced is not None
    assert (summary.replaced / DATABASE).is_file()


def test_an_import_replaces_a_damaged_journal(tmp_path: Path):
    fill(tmp_path / "old")
    export_state(tmp_path / "old", tmp_path / "backup.zip")
    (tmp_path / "old" / "journal" / DATABASE).write_bytes(b"")
    with pytest.raises(JournalError, match="damaged"):
        contents(tmp_path / "old")
    import_state(tmp_path / "backup.zip", tmp_path / "old")
    assert contents(tmp_path / "old")[0]


def test_a_folder_in_use_is_left_alone(tmp_path: Path):
    fill(tmp_path / "old")
    export_state(tmp_path / "old", tmp_path / "backup.zip")
    with (
        closing(StateFolder(tmp_path / "old")),
        pytest.raises(JournalError, match="another daemon uses the state folder"),
    ):
        import_state(tmp_path / "backup.zip", tmp_path / "old")


def test_export_of_folder_without_journal_raises_journal_error(tmp_path: Path):
    with pytest.raises(JournalError, match="there is no journal in"):
        export_state(tmp_path, tmp_path / "backup.zip")


def test_export_of_damaged_content_leaves_no_archive(tmp_path: Path):
    fill(tmp_path / "old")
    (path,) = libraries_in(tmp_path / "old").iterdir()
    path.write_bytes(b"x = 2\n")
    with pytest.raises(LibraryLoadError, match="is damaged"):
        export_state(tmp_path / "old", tmp_path / "backup.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def _drop_content(members: Members) -> None:
    content = next(name for name in members if name.startswith("libraries/"))
    del members[content]
    manifest = json.loads(members[MANIFEST])
    del manifest["sha256"][content]
    members[MANIFEST] = json.dumps(manifest).encode()


def _replace(name: str, change: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    def tamper(members: Members) -> None:
        found = next(member for member in members if member.startswith(name))
        members[found] = change(members[found])

    return tamper


def _add(name: str) -> Callable[[Members], None]:
    return lambda members: members.update({name: b"evil"})


@pytest.mark.parametrize(
    ("tamper", "complaint"),
    [
        (_add("../../evil.py"), "it has the file '../../evil.py', which no export writes"),
        (_add("/etc/evil"), "which no export writes"),
        (_add("libraries/../evil"), "which no export writes"),
        (_add("libraries/" + "0" * 64), "its manifest and its files do not agree"),
        (_replace("libraries/", lambda data: data + b"#"), "does not have the SHA-256"),
        (_replace("journal/journal", lambda data: data[:-1] + b"!"), "does not have the SHA-256"),
        (_replace(MANIFEST, lambda data: data[:-5]), "its manifest.json is missing or damaged"),
        (_replace(MANIFEST, lambda data: b"[]"), "its manifest.json is missing or damaged"),
        (_replace(MANIFEST, lambda data: data.replace(b": 1", b": 9")), "its format is 9"),
        (lambda members: members.pop(MANIFEST), "its manifest.json is missing or damaged"),
        (_drop_content, "of a library is not in it"),
    ],
)
def test_an_archive_that_is_not_as_it_was_written_changes_nothing(
    tmp_path: Path, tamper: Callable[[Members], None], complaint: str
):
    fill(tmp_path / "old")
    export_state(tmp_path / "old", tmp_path / "backup.zip")
    with zipfile.ZipFile(tmp_path / "backup.zip") as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    tamper(members)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    fill(tmp_path / "new", b"y = 2\n")
    before = contents(tmp_path / "new")
    with pytest.raises(JournalError, match="cannot be imported") as caught:
        import_state(tmp_path / "bad.zip", tmp_path / "new")
    assert complaint in str(caught.value)
    assert contents(tmp_path / "new") == before
    assert not (tmp_path / "evil.py").exists()
    left = {path.name for path in (tmp_path / "new").iterdir()}
    assert left == {"journal", "libraries", "owner.lock"}


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + b"\0" * 100])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(JournalError, match="it is not a zip archive that can be read"):
        import_state(tmp_path / "bad.zip", tmp_path / "new")


def test_every_truncation_of_an_archive_is_refused(tmp_path: Path):
    fill(tmp_path / "old")
    export_state(tmp_path / "old", tmp_path / "backup.zip")
    whole = (tmp_path / "backup.zip").read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 50)):
        (tmp_path / "bad.zip").write_bytes(whole[:size])
        with pytest.raises(JournalError, match="cannot be imported"):
            import_state(tmp_path / "bad.zip", tmp_path / "new")


def test_an_export_takes_the_place_of_files_alone(tmp_path: Path):
    fill(tmp_path / "state")
    (tmp_path / "backup.zip").write_text("an older one")
    export_state(tmp_path / "state", tmp_path / "backup.zip")
    assert zipfile.is_zipfile(tmp_path / "backup.zip")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(JournalError, match=r"pipe is not a regular file, and an export would"):
        export_state(tmp_path / "state", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_export_to_unwritable_path_names_the_path(tmp_path: Path):
    fill(tmp_path / "state")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        export_state(tmp_path / "state", tmp_path / "file" / "backup.zip")
    assert caught.value.filename == str(tmp_path / "file" / "backup.zip")


def test_a_folder_without_room_for_a_journal_is_refused(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with (
            closing(StateFolder(tmp_path / "state")) as folder,
            pytest.raises(JournalError, match=r"no journal can be made in .*state: \w"),
        ):
            folder.open_journal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "state" / "journal").exists()
