"""Standard input as an argument: read once, however often it is used."""

from __future__ import annotations

import sys

from opdispatch_client.cli.exit_codes import UsageError

NAMES = ("-", "@-")
"""The words that stand for standard input."""

# The stream that was read, and its content: the arguments are parsed once per overload.
_read: tuple[object, bytes] | None = None


def read_standard_input() -> bytes:
    """Return the content of standard input. Raises UsageError if there is none."""
    global _read
    if _read is None or _read[0] is not sys.stdin:
        if sys.stdin is None:
            raise UsageError("standard input is closed, so there is nothing to read")
        try:
            _read = (sys.stdin, sys.stdin.buffer.read())
        except OSError as error:
            raise UsageError(f"cannot read standard input: {error.strerror}") from None
    return _read[1]


def check_read_once(texts: list[str]) -> None:
    """Raise UsageError if more than one of the arguments is standard input."""
    if sum(text in NAMES for text in texts) > 1:
        raise UsageError("standard input can be one argument, and several are written as - or @-")
