"""``x[index]`` and ``x[index] = value`` of tensors, as calls of the operators for them.

They are ``array::getitem`` and ``array::setitem_``; ``array_operators/indexing.py`` says how an
index is written in a schema's types.
"""

from __future__ import annotations

import functools
import importlib
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import find_key_bits

_SCALARS = frozenset({bool, int, float, complex})


class _Operators(NamedTuple):
    get: Any
    get_arrays: Any
    set_scalar: Any
    set_tensor: Any


@functools.cache
def _operators() -> _Operators:
    array = importlib.import_module("opdispatch.array_api.operators").OPERATORS
    return _Operators(
        array.getitem.default, array.getitem.Tensor, array.setitem_.Scalar, array.setitem_.Tensor
    )


def getitem(x: Any, index: Any) -> Any:
    """What ``index`` selects of a tensor. Raises IndexError."""
    if type(index) is int:
        return _operators().get(x, [index], [None], [None])
    start, stop, step, indices = _entries_of(index, x.ndim)
    if indices:
        return _operators().get_arrays(x, start, stop, step, indices)
    return _operators().get(x, start, stop, step)


def setitem(x: Any, index: Any, value: Any) -> None:
    """Writes there. Raises IndexError, and ValueError if it cannot be written to."""
    entries = _entries_of(index, x.ndim)
    if type(value) in _SCALARS:
        _operators().set_scalar(x, *entries, value)
    else:
        is_tensor = find_key_bits(value) is not None
        _operators().set_tensor(x, *entries, value if is_tensor else np.asarray(value))


def _entries_of(
    index: Any, ndim: int
) -> tuple[list[int | None], list[int | None], list[int | None], list[Any]]:
    """Start, stop and step of each entry, and the arrays among them."""
    given = index if isinstance(index, tuple) else (index,)
    entries = [
        entry
        if entry is None or isinstance(entry, slice | EllipsisType)
        else _number_or_array(entry)
        for entry in given
    ]
    if any(entry is ... for entry in entries):
        entries = _without_ellipsis(entries, ndim)
    start: list[int | None] = []
    stop: list[int | None] = []
    step: list[int | None] = []
    arrays: list[Any] = []
    for entry in entries:
        is_array = False
        if isinstance(entry, slice):
            first, last, by = entry.start, entry.stop, 1 if entry.step is None else entry.step
        else:
            is_array = not isinstance(entry, int | None)
            first, last, by = None if is_array else entry, None, None
        start.append(first)
        stop.append(last)
        step.append(by)
        arrays.append(entry if is_array else None)
    return start, stop, step, arrays if any(each is not None for each in arrays) else []


def _number_or_array(entry: Any) -> Any:
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        return int(entry)
    if find_key_bits(entry) is not None:
        return entry
    array = np.asarray(entry)
    # An empty list is one of places, whatever NumPy makes of it otherwise.
    return array if array.size or array.dtype.kind != "f" else array.astype(np.intp)


def _without_ellipsis(entries: list[Any], ndim: int) -> list[Any]:
    """The entries with whole axes for ``...``."""
    place = next(place for place, entry in enumerate(entries) if entry is ...)
    before, after = entries[:place], entries[place + 1 :]
    if any(entry is ... for entry in after):
        raise IndexError("an index has one ellipsis ('...') at most")
    taken = sum(_dimensions_of(entry) for entry in (*before, *after))
    return [*before, *[slice(None)] * max(0, ndim - taken), *after]


def _dimensions_of(entry: Any) -> int:
    """How many dimensions of the tensor an entry stands for."""
    if entry is None:
        return 0
    is_mask = hasattr(entry, "dtype") and np.dtype(entry.dtype) == np.bool
    return len(entry.shape) if is_mask else 1
