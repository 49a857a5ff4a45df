"""Requirements files, read on the client's side: what the daemon gets stands for itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opdispatch_wire.errors import LibraryLoadError

Requirements = str | os.PathLike[str] | Sequence[str]
"""The path of a requirements file, or its lines."""

_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]?\s*(.+)")
_OPTION_WITH_PATH = re.compile(r"(-f|--find-links|-c|--constraint|-e|--editable)[ =]?\s*(.+)")


def read_requirements(requirements: Requirements) -> list[str]:
    """The lines of a requirements file, or those given, without comments.

    Included files are put in their place, continued lines are joined, and relative paths
    become absolute: they are looked for on the daemon's machine. Raises LibraryLoadError if a
    file cannot be read.
    """
    if isinstance(requirements, (str, os.PathLike)):
        return list(_read_file(Path(requirements).expanduser(), ()))
    return [line for text in requirements for line in _take_line(text, Path.cwd(), ())]


def _read_file(path: Path, above: tuple[Path, ...]) -> Iterator[str]:
    path = path.absolute()
    if path in above:
        raise LibraryLoadError(f"the requirements file {str(path)!r} includes itself")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else _why_no_text(error)
        raise LibraryLoadError(
            f"cannot read the requirements file {str(path)!r}: {reason}"
        ) from error
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        yield from _take_line(line, path.parent, (*above, path))


def _why_no_text(error: ValueError) -> str:
    return "it is no text" if isinstance(error, UnicodeError) else str(error)


def _take_line(line: str, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
    text = re.sub(r"(^|\s)#.*$", "", line).strip()
    if not text:
        return
    if include := _INCLUDE.fullmatch(text):
        yield from _read_file(folder / include[1].strip(), above)
    elif option := _OPTION_WITH_PATH.fullmatch(text):
        yield f"{option[1]} {_absolute(option[2].strip(), folder)}"
    else:
        yield _absolute(text, folder) if text.startswith(".") else text


def _absolute(place: str, folder: Path) -> str:
    return place if "://" in place else str((folder / Path(place).expanduser()).resolve())
