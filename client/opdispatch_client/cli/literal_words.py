"""Keywords, numbers and strings on the command line. Pure functions, without NumPy."""

from __future__ import annotations

import json
import re

from opdispatch_client.cli.exit_codes import UsageError

TOO_LONG = "an integer of more digits than Python reads"
NONE_WORDS = frozenset({"none", "None", "null"})
WORDS = {"true": True, "True": True, "false": False, "False": False}
_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|\d+[eE][+-]?\d+|inf|nan)")
_COMPLEX = re.compile(r"[+-]?[\d.][\d.eE+-]*j")


def parse_text(text: str) -> str:
    """Return the text unchanged, or the content of a quoted JSON string."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            return text
    return text


def parse_number(text: str) -> int | float | complex | None:
    """Return the number, or None. Raises UsageError for an integer that is too long to parse."""
    if _INTEGER.fullmatch(text):
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{shorten(text)} is {TOO_LONG}") from None
    if _FLOAT.fullmatch(text):
        return float(text)
    if _COMPLEX.fullmatch(text):
        try:
            return complex(text)
        except ValueError:
            return None
    return None


def shorten(text: str, limit: int = 60) -> str:
    """Return a text for a message: its repr, shortened."""
    return repr(text if len(text) <= limit else f"{text[: limit - 3]}...")
