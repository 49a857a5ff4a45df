"""Limits on the depth of nested lists and dicts and on the values in them.

Sender and receiver both check them. A list that several others contain is encoded once for each,
so that a few lists which share items can expand to more values than fit in memory.
"""

from __future__ import annotations

from typing import Any

from opdispatch.errors import ArgumentError, OpdispatchError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, check_size
from opdispatch_wire.packed_numbers import number_type

MAX_NESTING = 32
"""Deepest nesting of lists and dicts. Protobuf's own recursion limit is not much higher."""
MAX_VALUES = 100_000
"""Most values in all lists and dicts of a call; a packed list of numbers counts as one."""
VALUES_HINT = "numbers of one type, and arrays, count as one value however long they are"


class ValueCount:
    """Counts the values in the lists and dicts of one call or one reply. Not thread-safe."""

    # Class attributes until something is counted: most calls have no list, and pay nothing.
    _left = MAX_VALUES
    _bytes = 0

    def take(self, count: int, error: type[OpdispatchError] = ArgumentError) -> None:
        """Count ``count`` more values. Raises ``error`` if the call then has more than MAX_VALUES.

        ``error`` is chosen as for ``check_depth``.
        """
        self._left -= count
        if self._left < 0:
            raise error(too_many_values(), hint=VALUES_HINT)

    def take_bytes(self, count: int) -> None:
        """Count ``count`` more bytes of texts and packed numbers in lists and dicts.

        Raises MessageTooLargeError if they exceed the largest message.
        """
        self._bytes += count
        check_size(
            self._bytes,
            MAX_MESSAGE_BYTES_HIGHEST,
            "the content of the lists and dicts of the call",
            "send it in parts, or as arrays",
        )


def too_many_values() -> str:
    """Return the error message for a call with more than MAX_VALUES values."""
    return f"the lists and dicts of the call have more than {MAX_VALUES} values"


def check_depth(at: str, depth: int, error: type[OpdispatchError] = ArgumentError) -> None:
    """Raise ``error`` if ``depth`` other lists and dicts around the one at ``at`` are too many.

    Senders raise ArgumentError, receivers WireError.
    """
    if depth >= MAX_NESTING:
        # ``at`` is as deep as the value; its beginning is enough.
        raise error(
            f"{at[:60]}...: lists and dicts nest more than {MAX_NESTING} levels deep"
            + ("; does one of them contain itself?" if error is ArgumentError else "")
        )


def check_nesting(value: Any, at: str, count: ValueCount | None = None, depth: int = 0) -> None:
    """Raise ArgumentError if the lists and dicts of a value nest too deep.

    With a ``count``, also if they have too many values. For code that walks through values before
    they are encoded.
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
