"""The memory that this process may use: the machine's, or less if its control groups limit it.

A container or a service often gets only part of a machine's memory, set in ``memory.max`` (cgroup
v2) or ``memory.limit_in_bytes`` (v1) of its group or of a parent group. The smallest limit counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_OCTAL = re.compile(r"\\([0-7]{3})")
# The file with a group's limit, by type of file system.
_LIMIT_FILES: Final = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


def memory_limit(root: Path = Path("/")) -> int:
    """Return the memory limit in bytes that this process shares with others in its groups.

    ``root`` is the folder with ``proc`` and the mounted hierarchies.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    groups = dict(_groups(root))
    for kind, mount_root, mount_point in _mounts(root):
        if kind not in groups:
            continue
        # Only groups below the root of the mount are visible; in a container, often just its own.
        group = PurePosixPath(groups[kind])
        below = group.relative_to(mount_root) if group.is_relative_to(mount_root) else None
        place = PurePosixPath(mount_point, below or ".")
        for folder in (place, *place.parents):
            if not folder.is_relative_to(mount_point):
                break
            if (limit := _read_limit(root / str(folder)[1:] / _LIMIT_FILES[kind])) is not None:
                yield limit


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the type of each hierarchy that can limit memory, and this process's group in it."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            yield "cgroup2", group
        elif "memory" in controllers.split(","):
            yield "cgroup", group


def _mounts(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the type, the root and the mount point of each hierarchy: see ``man 5 proc``."""
    for line in _lines(root / "proc/self/mountinfo"):
        mounted, _, filesystem = line.partition(" - ")
        places, options = mounted.split(" "), filesystem.split(" ")
        if len(places) < 5 or len(options) < 3:
            continue
        kind = options[0]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options[2].split(",")):
            yield kind, _unescape(places[3]), _unescape(places[4])


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []  # not Linux, or /proc is not mounted


def _read_limit(path: Path) -> int | None:
    """Return the limit in a file; None if it says "max" or cannot be read."""
    try:
        text = path.read_text().strip()
    except (OSError, ValueError):
        return None
    # Otherwise "max", or more digits than a 64-bit number has.
    return int(text) if text.isdecimal() and len(text) < 20 else None
