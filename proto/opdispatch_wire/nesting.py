"""How deep lists and dicts may lie in each other, and how many values may lie in all of them.

Both where values are sent and where they arrive. A list that lies in several others is sent with
each of them: a few that share their parts may stand for more values than any memory has.
"""

from __future__ import annotations

from typing import Any

from opdispatch.errors import ArgumentError, OpdispatchError
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, check_size
from opdispatch_wire.packed_numbers import number_type

MAX_NESTING = 32
"""How many lists and dicts may lie in each other. Protobuf itself ends soon after that."""
MAX_VALUES = 100_000
"""How many values there may be in the lists and dicts of a call; packed numbers are one."""
VALUES_HINT = "numbers of one type, and arrays, count as one value however long they are"


class ValueCount:
    """Counts what is in the lists and dicts of one call, or of one reply. For one thread."""

    # Of the class until something is counted: most calls have no list, and pay nothing.
    _left = MAX_VALUES
    _bytes = 0

    def take(self, count: int, error: type[OpdispatchError] = ArgumentError) -> None:
        """Count so many more. Raises ``error`` if they are too many; see ``check_depth``."""
        self._left -= count
        if self._left < 0:
            raise error(too_many_values(), hint=VALUES_HINT)

    def take_bytes(self, count: int) -> None:
        """Count so many bytes more, of texts and packed numbers in lists and dicts.

        Raises MessageTooLargeError if they are more than any message has.
        """
        self._bytes += count
        check_size(
            self._bytes,
            MAX_MESSAGE_BYTES_HIGHEST,
            "what is in the lists and dicts of the call",
            "send it in parts, or as arrays",
        )


def too_many_values() -> str:
    """Return what is wrong with a call that has too many."""
    return f"the lists and dicts of the call have more than {MAX_VALUES} values"


def check_depth(at: str, depth: int, error: type[OpdispatchError] = ArgumentError) -> None:
    """Raise ``error`` for a list or dict at the place ``at`` that lies in ``depth`` others.

    ArgumentError for what is to be sent, WireError for what has arrived.
    """
    if depth >= MAX_NESTING:
        # The place has as many levels; its beginning is enough.
        raise error(
            f"{at[:60]}...: lists and dicts nest more than {MAX_NESTING} levels deep"
            + ("; does one of them lie in itself?" if error is ArgumentError else "")
        )


def check_nesting(value: Any, at: str, count: ValueCount | None = None, depth: int = 0) -> None:
    """Raise ArgumentError for a value to be sent whose lists and dicts nest too deep.

    Where there is a ``count``, also for one with too many values. For those that walk through
    values before these are encoded.
    """
    if isinstance(value, list | tuple):
        check_depth(at, depth)
        if count is not None and number_type(value) is None:
            count.take(len(value))
        for place, item in enumerate(value):
            if isinstance(item, list | tuple | dict):
                check_nesting(item, f"{at}[{place}]", count, depth + 1)
    elif isinstance(value, dict):
        check_depth(at, depth)
        if count is not None:
            count.take(len(value))
        for key, item in value.items():
            if isinstance(item, list | tuple | dict):
                check_nesting(item, f"{at}[{str(key)[:20]!r}]", count, depth + 1)
