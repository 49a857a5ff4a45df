"""Inline script metadata (PEP 723), read from unchecked source.

The specification's regular expression searches for a block's end from each of its lines, and
``tomllib`` stores every prefix of a dotted key: their time or memory grows with the square of the
text. So the lines are read once, only the start of a file counts, and the nesting of keys and
values is checked before they are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.library_source import METADATA_LIMIT

NESTING_LIMIT = 64
"""How deep values may be nested, and how many parts a dotted key may have."""

_START = re.compile(r"# /// ([a-zA-Z0-9-]+)")
_END = "# ///"

# No alternative rereads what another has read, so the time is linear in the text.
_TOKEN = re.compile(
    r"""(?P<text>"{3}(?:\\.|[^\\])*?(?:"{3}|\Z)|'{3}.*?(?:'{3}|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?)"""
    r"|(?P<comment>\#[^\n]*+)|(?P<word>[A-Za-z0-9_-]++)|(?P<blank>[ \t]++)|(?P<sign>.)",
    re.DOTALL,
)


def read_script_metadata(script: bytes, label: str) -> dict[str, Any]:
    """Return the table in the ``# /// script`` block of a source file; empty without one.

    Only the first ``METADATA_LIMIT`` bytes count. Raises LibraryLoadError for a block that is not
    TOML, is nested deeper than ``NESTING_LIMIT``, or does not end before the limit, and for two
    blocks.
    """
    start = script[:METADATA_LIMIT].decode("utf-8", errors="replace").replace("\r\n", "\n")
    lines = start.split("\n")
    blocks = [content for kind, content in _find_blocks(lines) if kind == "script"]
    if len(script) > METADATA_LIMIT and _ends_within_block(lines):
        raise LibraryLoadError(
            f"the script metadata of {label} does not end within the first {METADATA_LIMIT} bytes",
            hint="metadata belongs at the top of the file",
        )
    if not blocks:
        return {}
    if len(blocks) > 1:
        raise LibraryLoadError(f"{label} has {len(blocks)} blocks of script metadata; expected one")
    return _parse_toml("".join(f"{line[2:]}\n" for line in blocks[0]), label)


def _find_blocks(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the type and the lines of every block, as the specification's expression finds them.

    A block ends with the last ``# ///`` among the comment lines that follow its first line. If
    there is none, no line among them can begin a block either.
    """
    place = 0
    while place < len(lines):
        first = _START.fullmatch(lines[place])
        place += 1
        if first is None:
            continue
        run = list(takewhile(_is_content, lines[place:]))
        ends = [at for at, line in enumerate(run) if line == _END and at > 0]
        if ends:
            yield first[1], run[: ends[-1]]
            place += ends[-1] + 1
        else:
            place += len(run)


def _is_content(line: str) -> bool:
    return line == "#" or line.startswith("# ")


def _ends_within_block(lines: list[str]) -> bool:
    """Return whether the last line may belong to an unfinished block of script metadata."""
    *_, last = [place for place, line in enumerate(lines) if line == "# /// script"] or [-1]
    return last >= 0 and all(map(_is_content, lines[last:-1])) and lines[-1][:2] in ("", "#", "# ")


def _parse_toml(toml: str, label: str) -> dict[str, Any]:
    _check_nesting(toml, label)
    import tomllib

    try:
        return tomllib.loads(toml)
    except ValueError as error:  # TOMLDecodeError, or Python's limit on the digits of an integer
        raise LibraryLoadError(f"the script metadata of {label} is not TOML: {error}") from error


def _check_nesting(toml: str, label: str) -> None:
    """Raise LibraryLoadError if keys or values are nested deeper than the limit."""
    depth = parts = 0
    for token in _TOKEN.finditer(toml):
        match token.lastgroup, token[0]:
            case "sign", "[" | "{":
                depth, parts = depth + 1, 0
            case "sign", "]" | "}":
                depth, parts = max(depth - 1, 0), 0
            case "sign", ".":
                parts += 1
            case "sign", _:
                parts = 0
        if depth > NESTING_LIMIT or parts >= NESTING_LIMIT:
            raise LibraryLoadError(
                f"the script metadata of {label} is nested deeper than {NESTING_LIMIT} levels "
                f"at line {toml.count(chr(10), 0, token.start()) + 1} of its block"
            )
