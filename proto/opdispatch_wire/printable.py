"""Text of unknown origin, as a terminal or a log may show it.

A terminal obeys control characters: they move the cursor, change its title, hide or reorder what
stands beside them; and a line break in a log forges a line. Names, documentation,
exceptions and output of libraries are printed only through these functions.
"""

from __future__ import annotations

import json
import unicodedata

# Joiners belong to the spelling of some languages, and to emoji.
_KEPT = frozenset("\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")


def printable_line(text: str) -> str:
    """Return the text as one line, with control characters as Python's escapes.

    Tabs become blanks. Half surrogate pairs and characters that Unicode has not assigned are
    escaped, too.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text.expandtabs()))


def printable_lines(text: str) -> str:
    """Like ``printable_line``, with the line ends kept: as newlines, whatever they were."""
    if text.isprintable():
        return text
    return "\n".join(map(printable_line, text.replace("\r\n", "\n").split("\n")))


def printable_message(text: str) -> str:
    """Like ``printable_lines``, with all lines but the first one indented.

    None of them can pass for another message, then.
    """
    return printable_lines(text).replace("\n", "\n  ")


def escape_in_json(document: str) -> str:
    """Return the JSON document with control characters in its texts as JSON's escapes.

    JSON itself escapes only those below a blank. The line ends between its values stay.
    """
    if document.isprintable():
        return document
    return "".join(c if c == "\n" or is_printable(c) else json.dumps(c)[1:-1] for c in document)


def is_printable(character: str) -> bool:
    """Return whether a terminal shows the character, rather than obeys it."""
    is_shown = character.isprintable() or character in _KEPT
    return is_shown or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character if is_printable(character) else character.encode("unicode_escape").decode()
