"""A state folder as one file: for backup, and to move it to another machine.

A zip archive of the journal, as one database, and the stored content of the libraries that it
names; ``manifest.json`` has the SHA-256 of each. An import trusts none of it: it checks every path,
size and digest, then opens the journal with all of its own checks, and only then puts anything into
effect.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from opdispatch_server.daemon.state.folder import (
    StateFolder,
    check_journal,
    journal_in,
    libraries_in,
)
from opdispatch_server.daemon.state.journal import read_libraries, uploads_of
from opdispatch_server.daemon.state.journal_database import (
    DATABASE,
    LAST_EVENT,
    JournalDatabase,
)
from opdispatch_server.daemon.state.journal_record import LibraryRecord
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.file_sync import sync_path, sync_tree
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_wire.errors import JournalError

ARCHIVE_FORMAT = 1
MANIFEST = "manifest.json"
JOURNAL_MEMBERS = (f"journal/{DATABASE}", f"journal/{LAST_EVENT}")
UNPACKED_BYTES_LIMIT = 64 * 1024**3
_CONTENT = re.compile(r"libraries/[0-9a-f]{64}")
_MANIFEST_BYTES_LIMIT = 64 * 1024**2
_CHUNK = 1024**2


@dataclass(frozen=True, slots=True)
class StateSummary:
    """The contents of an archive. ``replaced`` is where an import moved the previous journal."""

    libraries: int
    contents: int
    last_event: int
    replaced: Path | None = None


def export_state(state: Path, archive: Path) -> StateSummary:
    """Write the state in the folder ``state`` to the file ``archive``, entirely or not at all.

    A daemon may be using the folder: what it has acknowledged so far is in the archive. Raises
    JournalError, LibraryLoadError if stored content is missing or damaged, and OSError.
    """
    if archive.exists() and not archive.is_file():
        raise JournalError(
            f"{archive} is not a regular file, and an export would replace it",
            hint="export to a file, and copy that",
        )
    check_journal(state)
    store = LibraryStore(libraries_in(state))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(closing(JournalDatabase(journal_in(state))))
        journal.copy_to(work)
        # Opened with the usual checks, so that what is exported can be imported.
        (work / LAST_EVENT).write_bytes(b"0\n")
        with closing(JournalDatabase(work)) as copy:
            libraries = read_libraries(copy)
            digests = uploads_of(libraries.values())
            summary = StateSummary(_count_loaded(libraries.values()), len(digests), copy.last_event)
        (work / LAST_EVENT).write_bytes(b"%020d\n" % summary.last_event)
        members = {name: work / Path(name).name for name in JOURNAL_MEMBERS}
        _write_archive(archive, members, digests, store)
    return summary


def import_state(archive: Path, state: Path) -> StateSummary:
    """Replace the state in ``state`` by the content of ``archive``, entirely or not at all.

    The previous journal is kept next to it. Raises JournalError if a daemon uses the folder, or the
    archive is not one that an export wrote; and OSError.
    """
    with closing(StateFolder(state)) as folder:
        draft = Path(tempfile.mkdtemp(dir=state, prefix="import.draft-"))
        try:
            with zipfile.ZipFile(archive) as opened:
                _unpack(opened, draft)
            journal = draft / "journal"
            with closing(JournalDatabase(journal, migrate=True)) as file:
                libraries = read_libraries(file)
                digests = uploads_of(libraries.values())
                last_event = file.last_event
            there = {path.name for path in (draft / "libraries").iterdir()}
            missing = [digest for digest in digests if digest not in there]
            if missing:
                raise _wrong(f"the content {missing[0][:12]} of a library is not in it")
            store = LibraryStore(folder.libraries)
            for digest in digests:
                store.adopt(draft / "libraries" / digest, digest)
            sync_tree(journal)
            fault_point(FaultPoint.IMPORT_VERIFIED)
            replaced = folder.take_import(journal)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            if isinstance(error, JournalError):
                raise
            raise _wrong(f"it is not a zip archive that can be read: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return StateSummary(_count_loaded(libraries.values()), len(digests), last_event, replaced)


def _count_loaded(libraries: Iterable[LibraryRecord]) -> int:
    return sum(bool(library.versions) for library in libraries)


def _write_archive(
    archive: Path, members: dict[str, Path], digests: list[str], store: LibraryStore
) -> None:
    try:
        descriptor, name = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}.")
    except OSError as error:  # it names the draft instead of the archive
        raise OSError(error.errno, error.strerror, str(archive)) from error
    draft = Path(name)
    try:
        hashes = {}
        with (
            open(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened,
        ):
            for member, path in members.items():
                opened.write(path, member)
                hashes[member] = hashlib.sha256(path.read_bytes()).hexdigest()
            for digest in digests:
                # Not compressed: uploads are compressed archives already.
                upload = zipfile.ZipInfo(f"libraries/{digest}")
                with opened.open(upload, "w", force_zip64=True) as target:
                    for chunk in store.read(digest):
                        target.write(chunk)
                hashes[f"libraries/{digest}"] = digest
            manifest = {"format": ARCHIVE_FORMAT, "sha256": hashes}
            opened.writestr(MANIFEST, json.dumps(manifest, indent=1, sort_keys=True))
        sync_path(draft)
        draft.rename(archive)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_path(archive.parent)


def _unpack(opened: zipfile.ZipFile, draft: Path) -> None:
    """Unpack an archive that is exactly what its manifest says. Raises JournalError."""
    hashes = _read_manifest(opened)
    members = {member.filename: member for member in opened.infolist()}
    if len(members) != len(opened.infolist()):
        raise _wrong("it has two files of one name")
    for name in members.keys() - {MANIFEST}:
        # Only these names are ever written, so no path can lead outside the draft.
        if name not in JOURNAL_MEMBERS and not _CONTENT.fullmatch(name):
            raise _wrong(f"it has the file {name!r}, which no export writes")
    if members.keys() - {MANIFEST} != hashes.keys():
        odd = sorted((members.keys() - {MANIFEST}) ^ hashes.keys())
        raise _wrong(f"its manifest and its files do not agree on {odd[0]!r}")
    if sum(member.file_size for member in members.values()) > UNPACKED_BYTES_LIMIT:
        raise _wrong(f"it unpacks to more than {UNPACKED_BYTES_LIMIT} bytes")
    for folder in ("journal", "libraries"):
        (draft / folder).mkdir(mode=0o700)
    for name, expected in hashes.items():
        _unpack_member(opened, members[name], draft / name, expected)


def _read_manifest(opened: zipfile.ZipFile) -> dict[str, str]:
    try:
        if opened.getinfo(MANIFEST).file_size > _MANIFEST_BYTES_LIMIT:
            raise ValueError("it is too long")
        manifest = json.loads(opened.read(MANIFEST))
        written_in, hashes = manifest["format"], manifest["sha256"]
        if not all(isinstance(text, str) for text in (*hashes, *hashes.values())):
            raise ValueError("a digest is not a string")
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong(f"its {MANIFEST} is missing or damaged: {error}") from error
    if written_in != ARCHIVE_FORMAT:
        raise _wrong(f"its format is {written_in}, and this opdispatch reads {ARCHIVE_FORMAT}")
    return dict(hashes)


def _unpack_member(
    opened: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, expected: str
) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        with opened.open(member) as source, path.open("xb") as target:
            os.fchmod(target.fileno(), 0o600)
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > member.file_size:
                    raise _wrong(f"its file {member.filename!r} is longer than it says")
                digest.update(chunk)
                target.write(chunk)
    except (JournalError, OSError):
        raise
    except Exception as error:  # a damaged stream raises the decompressor's own error
        raise _wrong(f"its file {member.filename!r} is damaged: {error}") from error
    if digest.hexdigest() != expected or (
        path.parent.name == "libraries" and path.name != expected
    ):
        raise _wrong(f"its file {member.filename!r} does not have the SHA-256 that it should")


def _wrong(what: str) -> JournalError:
    return JournalError(
        f"the archive cannot be imported: {what}",
        hint="nothing has changed; `opdispatch state export` writes such archives",
    )
