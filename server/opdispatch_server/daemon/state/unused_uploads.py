"""Uploads that no library can be loaded from any more, and the folders they were unpacked to.

An upload is kept when the last version loaded from it is gone: loading it again is quick then, and
the journal that an import replaced may still name it. So uploads are removed only on request, from
a folder that no daemon uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opdispatch_server.daemon.state.journal import uploads_of
from opdispatch_server.daemon.state.named_libraries import named_libraries
from opdispatch_server.library_code.library_store import LibraryStore


@dataclass(frozen=True, slots=True)
class RemovedUploads:
    """How many uploads were removed, how many bytes that freed, and how many were kept.

    The bytes include folders that uploads were unpacked to, and incomplete uploads.
    """

    removed: int
    freed_bytes: int
    kept: int


def remove_unused_uploads(state: Path, *, dry_run: bool = False) -> RemovedUploads:
    """Remove the uploads in the folder ``state`` that none of its journals names.

    With ``dry_run``, only counts them. Raises OSError, and the errors of ``named_libraries``, in
    which case nothing has been removed.
    """
    with named_libraries(state) as (folder, libraries):
        named = set(uploads_of(libraries))
        store = LibraryStore(folder.libraries)
        uploads = store.paths()
        unused = [path for path in uploads if path.name not in named]
        freed = store.unpacked.remove(named.__contains__, dry_run=dry_run)
        freed += store.remove_parts(dry_run=dry_run)
        for path in unused:
            freed += path.stat().st_size
            if not dry_run:
                path.unlink()
    return RemovedUploads(len(unused), freed, len(uploads) - len(unused))
