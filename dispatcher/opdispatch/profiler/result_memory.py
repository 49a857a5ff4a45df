"""Memory newly allocated for the results of a call.

Arrays belong to many libraries, so there is no common allocator to query. The memory of arguments
and results is compared before and after the call; temporary allocations of a kernel are not seen.
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
"""Memory owners by id. The references keep the ids valid while they are compared."""


def owners_of(values: Iterable[Any]) -> Owners:
    """Return the memory owners of the tensors among the values, including those in lists."""
    found: Owners = {}
    for value in values:
        if isinstance(value, list | tuple):
            found.update(owners_of(value))
        elif find_key_bits(value) is not None:
            owner, _ = _owner_of(getattr(value, "array", value))
            found[id(owner)] = owner
    return found


def result_bytes(result: Any, before: Owners) -> int:
    """Return the size in bytes of the results' memory without that of the owners in ``before``."""
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
    """Return the object that owns an array's memory, through all views, and its size in bytes.

    For sparse and other layouts, the size includes all component arrays. Meta arrays, arrays of
    other processes and invalid arrays returned by a kernel have size 0.
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
