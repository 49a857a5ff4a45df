"""Escape untrusted text before a terminal or a log shows it.

Terminals obey control characters, which can move the cursor, change the title, and hide or reorder
the text around them; a line break in a log forges a line. Names, documentation, exceptions and
output of libraries are printed only through these functions.
"""

from __future__ import annotations

import json
import unicodedata

# Joiners belong to the spelling of some languages, and to emoji.
_KEPT = frozenset("\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}")


def printable_line(text: str) -> str:
    """Return the text as one line, with control characters as Python escapes.

    Tabs become spaces. Lone surrogates and unassigned characters are escaped, too.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text.expandtabs()))


def printable_lines(text: str) -> str:
    """Like ``printable_line``, but keep line breaks. CRLF becomes a newline."""
    if text.isprintable():
        return text
    return "\n".join(map(printable_line, text.replace("\r\n", "\n").split("\n")))


def printable_message(text: str) -> str:
    """Like ``printable_lines``, with all lines but the first indented.

    So no line can pass for another message.
    """
    return printable_lines(text).replace("\n", "\n  ")


def escape_in_json(document: str) -> str:
    """Return a JSON document with the control characters in its strings as JSON escapes.

    JSON itself escapes only those below U+0020. The newlines between values stay.
    """
    if document.isprintable():
        return document
    return "".join(c if c == "\n" or is_printable(c) else json.dumps(c)[1:-1] for c in document)


def is_printable(character: str) -> bool:
    """Return whether a terminal displays the character rather than obeying it."""
    is_shown = character.isprintable() or character in _KEPT
    return is_shown or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character if is_printable(character) else character.encode("unicode_escape").decode()
