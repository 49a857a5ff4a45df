"""Detects results that are too long for any message before they are encoded, which takes long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from opdispatch_wire.message_size import check_size
from opdispatch_wire.nesting_limits import MAX_VALUES
from opdispatch_wire.packed_numbers import number_type

RESULT: Final = "the result of the call"
"""Names the value that is too long."""

# The least size of an item on the wire, in bytes.
_LEAST_BYTES: dict[type, int] = {int: 8, float: 8, complex: 16, bool: 1}
_LEAST_OF_OTHERS = 2
# Longer lists are not searched, unless they may contain numbers, which are packed.
_FEW = 1024


def check_lengths(results: Iterable[Any], limit: int, what: str) -> None:
    """Raise MessageTooLargeError if strings and lists certainly exceed ``limit`` bytes.

    Tensors are not counted: they may be sent outside the message. Lists that contain themselves, or
    share so many parts that there are too many values, are left to the encoder, which refuses them,
    and are not fully traversed here.
    """
    size = values = 0
    lists: list[list[Any] | tuple[Any, ...]] = [tuple(results)]
    while lists and values <= MAX_VALUES:
        items = lists.pop()
        kind = number_type(items)
        if kind is not None:
            size += len(items) * _LEAST_BYTES.get(kind, _LEAST_OF_OTHERS)
            continue
        values += len(items)
        if len(items) > _FEW:
            size += len(items) * _LEAST_OF_OTHERS
            continue
        for item in items:
            if isinstance(item, str | bytes):
                size += len(item)
            elif isinstance(item, list | tuple):
                lists.append(item)
    if size > limit:
        check_size(size, limit, what)
