"""Separates an operator's arguments on a command line. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opdispatch_client.cli.exit_codes import UsageError

_KEYWORD = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-(\.?\d.*|inf|nan)")


def split_keywords(texts: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Separate ``NAME=ARG`` from the positional arguments.

    Raises UsageError for a repeated name.
    """
    positional: list[str] = []
    by_name: dict[str, str] = {}
    for text in texts:
        match = _KEYWORD.fullmatch(text)
        if match is None:
            positional.append(text)
        elif match[1] in by_name:
            raise UsageError(f"the argument {match[1]} is given twice")
        else:
            by_name[match[1]] = match[2]
    return positional, by_name


def is_negative_number(text: str) -> bool:
    """Return whether the text, which looks like an option, is a negative number."""
    return _NEGATIVE_NUMBER.fullmatch(text) is not None
