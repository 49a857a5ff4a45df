"""Read requirements files on the client; the daemon gets only their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opdispatch_wire.errors import LibraryLoadError

Requirements = str | os.PathLike[str] | Sequence[str]
"""The path of a requirements file, or its lines."""

LINE_LIMIT = 4096
"""Longest requirement, in characters."""

_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]?\s*(.+)")
_OPTION_WITH_PATH = re.compile(r"(-f|--find-links|-c|--constraint|-e|--editable)[ =]?\s*(.+)")
_COMMENT = re.compile(r"(?:^|\s)#")
# Bounds files that include others twice, each of which does the same.
_MOST_FILES = 100


def read_requirements(requirements: Requirements) -> list[str]:
    """Return the requirements in a file, or in the lines given, without comments.

    Included files are inlined and continued lines joined. Relative paths become absolute; the
    daemon looks for them on its own machine. Raises LibraryLoadError if a file cannot be read, or
    a line is not a requirement.
    """
    if isinstance(requirements, (str, os.PathLike)):
        return list(_Reader().read_file(Path(os.path.expanduser(requirements)), ()))
    reader = _Reader()
    return [line for text in requirements for line in reader.take_line(text, Path.cwd(), ())]


def check_line(text: str, what: str) -> str:
    """Return the text stripped. Raises LibraryLoadError if it is too long or not a single line.

    Lines are those of ``str.splitlines``, not only of newlines: installers split there as well.
    """
    text = text.strip()
    if len(text) > LINE_LIMIT:
        raise LibraryLoadError(
            f"{text[:80]!r}... is not {what}: it has {len(text)} characters, and the limit "
            f"is {LINE_LIMIT}"
        )
    if len(text.splitlines()) > 1 or "\0" in text:
        raise LibraryLoadError(f"{text[:80]!r} is not {what}: it is more than one line")
    return text


def requirement_line(text: str) -> str:
    """Return a requirement without its comment; empty if there is only a comment.

    Raises LibraryLoadError if it is too long or not a single line.
    """
    text = text.strip()
    if len(text.splitlines()) <= 1:  # otherwise a comment would hide the lines after it
        text = _COMMENT.split(text, maxsplit=1)[0]
    return check_line(text, "a requirement")


class _Reader:
    """Reads a requirements file and those that it includes."""

    def __init__(self) -> None:
        self._files = 0

    def read_file(self, path: Path, above: tuple[Path, ...]) -> Iterator[str]:
        path = path.absolute()
        if path in above:
            raise LibraryLoadError(f"the requirements file {str(path)!r} includes itself")
        self._files += 1
        if self._files > _MOST_FILES:
            raise LibraryLoadError(
                f"more than {_MOST_FILES} requirements files are included, {str(path)!r} among them"
            )
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else _why_no_text(error)
            raise LibraryLoadError(
                f"cannot read the requirements file {str(path)!r}: {reason}"
            ) from error
        for line in re.sub(r"\\\r?\n", " ", text).splitlines():
            yield from self.take_line(line, path.parent, (*above, path))

    def take_line(self, line: str, folder: Path, above: tuple[Path, ...]) -> Iterator[str]:
        text = requirement_line(line)
        if not text:
            return
        if include := _INCLUDE.fullmatch(text):
            yield from self.read_file(folder / include[1].strip(), above)
        elif option := _OPTION_WITH_PATH.fullmatch(text):
            yield f"{option[1]} {_absolute(option[2].strip(), folder)}"
        else:
            yield _absolute(text, folder) if text.startswith(".") else text


def _why_no_text(error: ValueError) -> str:
    return "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error)


def _absolute(place: str, folder: Path) -> str:
    if "://" in place:
        return place
    try:
        return str((folder / os.path.expanduser(place)).resolve())
    except (OSError, RuntimeError, ValueError) as error:  # circular links, a lone surrogate
        raise LibraryLoadError(f"{place[:80]!r} is not a valid path: {error}") from error
