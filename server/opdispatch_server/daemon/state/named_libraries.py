"""The libraries that the journals of a state folder name: the files that they need must stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from opdispatch_server.daemon.state.folder import StateFolder, check_journal
from opdispatch_server.daemon.state.journal import read_libraries
from opdispatch_server.daemon.state.journal_database import JournalDatabase
from opdispatch_server.daemon.state.journal_record import LibraryRecord
from opdispatch_wire.errors import JournalError


@contextmanager
def named_libraries(state: Path) -> Iterator[tuple[StateFolder, list[LibraryRecord]]]:
    """Lock the folder ``state``; yield it, and the libraries of all its journals.

    Journals that imports have set aside count: moving one back brings its libraries back. Raises
    JournalError if a daemon uses the folder, or if one of its journals is missing or damaged, since
    that might name any library.
    """
    check_journal(state)
    with closing(StateFolder(state)) as folder:
        libraries = _read(folder.journal)
        for path in folder.replaced_journals():
            try:
                libraries += _read(path)
            except JournalError as error:
                raise JournalError(
                    f"what the journal in {path} needs cannot be known: {error}",
                    hint="remove that folder if it is not to be restored",
                    path=str(path),
                ) from error
        yield folder, libraries


def _read(journal: Path) -> list[LibraryRecord]:
    with closing(JournalDatabase(journal)) as file:
        return list(read_libraries(file).values())
