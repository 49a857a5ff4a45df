"""Uploads that nothing can be loaded from any more.

An upload is kept when the last version that was loaded from it has gone: loading it again is
quick then, and the journal that an import has replaced may still name it. So they only go when
somebody asks, of a folder that no daemon uses.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.state.journal import read_libraries, uploads_of
from opdispatch_server.state.journal_file import JournalFile
from opdispatch_server.state.state_folder import StateFolder, check_journal
from opdispatch_wire.errors import JournalError


@dataclass(frozen=True, slots=True)
class RemovedUploads:
    """How many uploads were removed, their bytes, and how many were kept."""

    removed: int
    freed_bytes: int
    kept: int


def remove_unused_uploads(state: Path) -> RemovedUploads:
    """Removes the uploads in the folder ``state`` that none of its journals names.

    Journals that imports have put aside count: whoever moves one back has its libraries again.
    Raises JournalError if a daemon uses the folder, or if one of its journals is missing or
    damaged, and nothing has been removed then; and OSError.
    """
    check_journal(state)
    with closing(StateFolder(state)) as folder:
        named: set[str] = set()
        # All of them before the first upload goes: one that cannot be read may name any.
        named.update(_uploads_named_in(folder.journal))
        for path in folder.replaced_journals():
            try:
                named.update(_uploads_named_in(path))
            except JournalError as error:
                raise JournalError(
                    f"the uploads that {path} needs cannot be known: {error}",
                    hint="remove that folder if nobody is to go back to it",
                    path=str(path),
                ) from error
        uploads = LibraryStore(folder.libraries).paths()
        unused = [path for path in uploads if path.name not in named]
        freed = 0
        for path in unused:
            size = path.stat().st_size
            path.unlink()
            freed += size
    return RemovedUploads(len(unused), freed, len(uploads) - len(unused))


def _uploads_named_in(journal: Path) -> list[str]:
    with closing(JournalFile(journal)) as file:
        return uploads_of(read_libraries(file).values())
