"""How much memory the results of a call have that its arguments had not.

There is no allocator to ask: arrays are of many libraries. What can be told is what can be seen
before a call and after it. Memory that a kernel took and gave back meanwhile cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.arrays.backends import find_backend
from opdispatch.arrays.layouts import find_layout
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.errors import ArgumentError

Owners = dict[int, Any]
"""Objects that own memory, by identity. They live as long as it is asked whose memory it is."""


def owners_of(values: Iterable[Any]) -> Owners:
    """Return the owners of the tensors' memory among these values, also of those in lists."""
    found: Owners = {}
    for value in values:
        if isinstance(value, list | tuple):
            found.update(owners_of(value))
        elif find_key_bits(value) is not None:
            owner, _ = _owner_of(getattr(value, "array", value))
            found[id(owner)] = owner
    return found


def result_bytes(result: Any, before: Owners) -> int:
    """Return the size in bytes of the results' memory whose owners are not among those of
    ``before``.
    """
    total = 0
    seen = set(before)
    for value in _values(result):
        owner, size = _owner_of(getattr(value, "array", value))
        if id(owner) not in seen:
            seen.add(id(owner))
            total += size
    return total


def _values(result: Any) -> Iterable[Any]:
    if isinstance(result, list | tuple):
        for each in result:
            yield from _values(each)
    elif find_key_bits(result) is not None:
        yield result


def _owner_of(array: Any) -> tuple[Any, int]:
    """Return the owner of an array's memory, through all views, and its size in bytes.

    Arrays without elements have none, nor have those that are elsewhere, in another process. One
    of another layout is its elements', with all that it has beside them; of one that a kernel has
    broken, nothing can be told.
    """
    layout = find_layout(type(array))
    if layout is not None:
        try:
            size = layout.nbytes(array)
        except ArgumentError:
            return array, 0
        return _owner_of(layout.elements(array))[0], size
    if type(array) is MetaArray or find_backend(type(array)) is None:
        return array, 0
    size = getattr(array, "nbytes", 0)
    while True:
        base = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
        if base is None:
            return array, size if isinstance(size, int) else 0
        array, size = base, getattr(base, "nbytes", size)
