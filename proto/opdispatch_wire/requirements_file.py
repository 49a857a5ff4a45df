"""Requirements files, read on the client's side: what the daemon gets stands for itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opdispatch_wire.errors import LibraryLoadError

Requirements = str | os.PathLike[str] | Sequence[str]
"""The path of a requirements file, or its lines."""

LINE_LIMIT = 4096
"""How many characters one requirement may have."""

_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]?\s*(.+)")
_OPTION_WITH_PATH = re.compile(r"(-f|--find-links|-c|--constraint|-e|--editable)[ =]?\s*(.+)")
_COMMENT = re.compile(r"(?:^|\s)#")
# Files that include each other twice would be read without end.
_MOST_FILES = 100


def read_requirements(requirements: Requirements) -> list[str]:
    """Return the lines of a requirements file, or those given, without comments.

    Included files are put in their place, continued lines are joined, and relative paths
    become absolute: they are looked for on the daemon's machine. Raises LibraryLoadError if a
    file cannot be read, or a line is none.
    """
    if isinstance(requirements, (str, os.PathLike)):
        return list(_Reader().read_file(Path(os.path.expanduser(requirements)), ()))
    reader = _Reader()
    return [line for text in requirements for line in reader.take_line(text, Path.cwd(), ())]


def check_line(text: str, what: str) -> str:
    """Return the text without blanks at its ends. Raises LibraryLoadError for more than a line.

    An installer separates lines where ``str.splitlines`` does, not only at newlines.
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
    """Return a line of requirements without its comment; empty if it has nothing else.

    Raises LibraryLoadError for more than a line.
    """
    text = text.strip()
    if len(text.splitlines()) <= 1:  # otherwise a comment would hide the lines behind it
        text = _COMMENT.split(text, maxsplit=1)[0]
    return check_line(text, "a requirement")


class _Reader:
    """Reads a requirements file, with those that it includes."""

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
    return "it is no text" if isinstance(error, UnicodeError) else str(error)


def _absolute(place: str, folder: Path) -> str:
    if "://" in place:
        return place
    try:
        return str((folder / os.path.expanduser(place)).resolve())
    except (OSError, RuntimeError, ValueError) as error:  # links that go round, half a surrogate
        raise LibraryLoadError(f"{place[:80]!r} is no path: {error}") from error
