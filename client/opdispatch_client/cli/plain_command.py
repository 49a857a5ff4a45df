"""Command lines of ``opdispatch call`` that only make a call. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from opdispatch_client.cli.split_arguments import is_negative_number

_OPERATOR = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class NotPlainError(Exception):
    """Raised for a call that has to be parsed, or made, on the general path."""


class PlainCommand(NamedTuple):
    """A command line that calls an operator, and has no other options."""

    operator: str
    arguments: list[str]
    address: str | None
    timeout: float | None
    json: bool


def find_plain_command(words: Sequence[str]) -> PlainCommand | None:
    """Parse a command line; return None unless it is plain."""
    given: dict[str, str] = {}
    rest: list[str] = []
    as_json = False
    ahead = iter(words)
    for word in ahead:
        name, separator, value = word.partition("=")
        if word == "--json":
            as_json = True
        elif name in ("--address", "--timeout"):
            given[name] = value if separator else next(ahead, "")
        elif word.startswith("-") and not is_negative_number(word):
            return None
        else:
            rest.append(word)
    if len(rest) < 2 or rest[0] != "call" or not _OPERATOR.fullmatch(rest[1]):
        return None
    address, timeout = given.get("--address"), given.get("--timeout")
    if address == "" or (timeout is not None and not _SECONDS.fullmatch(timeout)):
        return None
    seconds = None if timeout is None else float(timeout)
    return PlainCommand(rest[1], rest[2:], address, seconds, as_json)
