"""Environments on disk, with their sizes and what they serve; those that serve nothing removed.

An environment is kept when the last library in it has gone, since it may have taken long to make.
It only goes when the user asks, of a folder that no daemon uses; a library that needs it again has
it made again.
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
    """One environment: its key, its size in bytes, and the versions of libraries that need it."""

    key: str
    size: int
    serves: tuple[str, ...]


def remove_unused_environments(state: Path, *, dry_run: bool = False) -> list[FoundEnvironment]:
    """Return all environments in the folder ``state``; remove those that serve nothing.

    Of another Python, or another version of opdispatch, none is needed: the daemon that comes next
    has its own made. With ``dry_run`` nothing is removed. Raises as ``named_libraries`` does, and
    nothing has been removed then; and OSError.
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
                # The link first: what no link leads to is no environment, whatever is left of it.
                if link.is_symlink():
                    link.unlink()
                shutil.rmtree(target, ignore_errors=True)
    return found


def _served_by(libraries: Iterable[LibraryRecord]) -> dict[str, list[str]]:
    """Return the versions that need an environment, by its key."""
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
    """Return the bytes that it takes on disk; files that other folders have, too, count."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                continue
    return size
