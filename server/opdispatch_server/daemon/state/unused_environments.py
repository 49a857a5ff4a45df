"""Environments on disk, their sizes and the libraries that use them; removal of unused ones.

An environment is kept when its last library is gone, since it may have taken long to build. It is
removed only at the user's request, from a folder that no daemon uses; a library that needs it again
causes a new build.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opdispatch_server.daemon.environments.store import find_key
from opdispatch_server.daemon.state.journal_record import LibraryRecord
from opdispatch_server.daemon.state.named_libraries import named_libraries

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FoundEnvironment:
    """One environment: its key, its size in bytes, and the library versions that need it."""

    key: str
    size: int
    serves: tuple[str, ...]


def remove_unused_environments(state: Path, *, dry_run: bool = False) -> list[FoundEnvironment]:
    """Return all environments in the folder ``state``; remove those that no library uses.

    Environments of another Python or another version of opdispatch count as unused: the next daemon
    builds its own. With ``dry_run`` nothing is removed. Raises OSError, and the errors of
    ``named_libraries``, in which case nothing has been removed.
    """
    with named_libraries(state) as (folder, libraries):
        needed = _served_by(libraries)
        place = folder.path / "environments"
        found = []
        for link in sorted(place.iterdir()) if place.is_dir() else ():
            if not _KEY.fullmatch(link.name):
                continue
            target = place / link.readlink() if link.is_symlink() else link
            serves = tuple(needed.get(link.name, ()))
            found.append(FoundEnvironment(link.name, _size_of(target), serves))
            if not serves and not dry_run:
                # The link first: without it, the folder is not an environment, however much of it
                # is left.
                if link.is_symlink():
                    link.unlink()
                shutil.rmtree(target, ignore_errors=True)
    return found


def _served_by(libraries: Iterable[LibraryRecord]) -> dict[str, list[str]]:
    """Return the library versions that need an environment, by its key."""
    serves: defaultdict[str, list[str]] = defaultdict(list)
    for library in libraries:
        for version in library.versions:
            home = version.source.home
            if home.has_environment and not home.python:
                name = f"{library.name} v{version.version}"
                if name not in (names := serves[find_key(home)]):
                    names.append(name)
    return serves


def _size_of(folder: Path) -> int:
    """Return its size on disk, in bytes; files shared with other folders count, too."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue
    return size
