"""Results that are too long for any message: found out before they are packed, which takes long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opdispatch_wire.channel import check_size
from opdispatch_wire.packed_numbers import number_type

# What is certain of the size of an item on the wire, in bytes.
_LEAST_BYTES: dict[type | None, int] = {int: 8, float: 8, complex: 16, bool: 1}
_LEAST_OF_OTHERS = 2
# Longer lists are not looked into, unless they may be of numbers, which travel packed.
_FEW = 1024


def check_lengths(results: Iterable[Any], limit: int, what: str) -> None:
    """Raises MessageTooLargeError if texts and lists are longer than ``limit`` bytes for certain.

    Tensors are not counted: they may travel beside the message.
    """
    size = sum(map(_least_bytes, results))
    if size > limit:
        check_size(size, limit, what)


def _least_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, list | tuple) or not value:
        return 0
    if len(value) <= _FEW:
        return sum(map(_least_bytes, value))
    return len(value) * _LEAST_BYTES.get(number_type(value), _LEAST_OF_OTHERS)
