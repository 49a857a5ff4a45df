"""``x[index]`` and ``x[index] = value`` of tensors, as operator calls.

The operators are ``array::getitem`` and ``array::setitem_``;
``native/array/operators/indexing.py`` explains how their schemas express an index.

Note [Arrays around an ellipsis]
    The index arrays broadcast to joint dimensions. If the arrays are adjacent in the index, the
    joint dimensions take their place; otherwise they come first. NumPy does not treat arrays
    separated by an ellipsis as adjacent, even if the ellipsis expands to no dimension: for an x of
    shape (3, 3), the result of ``x[None, :, i, ..., j]`` begins with the joint dimensions, and that
    of ``x[None, :, i, j]`` does not. The operators' lists cannot express an ellipsis, so this rare
    kind of index is converted to one that consists of arrays only.
"""

from __future__ import annotations

import functools
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import find_key_bits
from opdispatch.local_state.lazy_imports import array_namespace, array_operators

SCALARS = frozenset({bool, int, float, complex})


class _Operators(NamedTuple):
    get: Any
    get_arrays: Any
    set_scalar: Any
    set_tensor: Any


@functools.cache
def _operators() -> _Operators:
    array = array_operators()
    return _Operators(
        array.getitem.default, array.getitem.Tensor, array.setitem_.Scalar, array.setitem_.Tensor
    )


def getitem(x: Any, index: Any) -> Any:
    """Return the elements of a tensor that ``index`` selects. Raises IndexError.

    ``array_api/subscript.py`` has the fast path for common indices.
    """
    operators = _operators()
    start, stop, step, indices = _entries_of(index, x)
    if indices:
        return operators.get_arrays(x, start, stop, step, indices)
    return operators.get(x, start, stop, step)


def setitem(x: Any, index: Any, value: Any) -> None:
    """Write ``value`` to the elements that ``index`` selects.

    Raises IndexError, and ValueError if the tensor is read-only.
    """
    if index is ... and type(value) is type(x):
        _operators().set_tensor.call_converted(x, [], [], [], [], value)
        return
    entries = ([], [], [], []) if index is ... else _entries_of(index, x)
    if type(value) in SCALARS:
        _operators().set_scalar(x, *entries, value)
    else:
        is_tensor = type(value) is type(x) or find_key_bits(value) is not None
        _operators().set_tensor(x, *entries, value if is_tensor else np.asarray(value))


def _entries_of(
    index: Any, x: Any
) -> tuple[list[int | None], list[int | None], list[int | None], list[Any]]:
    """Return the start, stop and step of each entry of an index, and its index arrays.

    An integer has only a start; None in the last list means that the entry is not an array. The
    last list is empty if there are no arrays.
    """
    given = index if isinstance(index, tuple) else (index,)
    entries = [
        entry
        if entry is None or isinstance(entry, slice | EllipsisType)
        else _number_or_array(entry)
        for entry in given
    ]
    if any(entry is ... for entry in entries):
        entries = _without_ellipsis(entries, x.shape)
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
    # NumPy gives an empty list the dtype float64; as an index, it is an integer array.
    return array if array.size or array.dtype.kind != "f" else array.astype(np.intp)


def _without_ellipsis(entries: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Replace ``...`` by full slices. See Note [Arrays around an ellipsis]."""
    place = next(place for place, entry in enumerate(entries) if entry is ...)
    before, after = entries[:place], entries[place + 1 :]
    if any(entry is ... for entry in after):
        raise IndexError("an index has one ellipsis ('...') at most")
    taken = sum(_dimensions_of(entry) for entry in (*before, *after))
    if taken == len(shape) and _separates(before, after):
        return _joint_first([*before, *after], shape)
    return [*before, *[slice(None)] * max(0, len(shape) - taken), *after]


def _separates(before: list[Any], after: list[Any]) -> bool:
    """Return whether an ellipsis that expands to no dimension separates adjacent index arrays."""
    entries = [*before, *after]
    if not any(_is_array(entry) for entry in entries):
        return False
    advanced = [n for n, entry in enumerate(entries) if not _is_slice_or_axis(entry)]
    first, last = advanced[0], advanced[-1]
    return 0 < first < len(before) <= last and last - first + 1 == len(advanced)


def _joint_first(entries: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Convert an index to one of arrays only, whose joint dimensions come first.

    A slice becomes an array of positions in a dimension of its own, after the joint dimensions. The
    entries must cover all axes. Raises IndexError.
    """
    array_api = array_namespace()
    expanded: list[Any] = []
    taken = 0
    for entry in entries:
        if _is_array(entry) and np.dtype(entry.dtype) == np.bool:
            _check_mask(tuple(entry.shape), shape[taken : taken + len(entry.shape)])
            expanded += array_api.nonzero(entry)
        else:
            expanded.append(entry)
        taken += _dimensions_of(entry)
    behind = own = sum(map(_is_slice_or_axis, expanded))
    axis, places = 0, []
    for entry in expanded:
        own -= _is_slice_or_axis(entry)  # the number of dimensions after this entry's own
        if entry is None:  # a new dimension, in which every array has extent 1
            continue
        if isinstance(entry, slice):
            places.append(np.arange(*entry.indices(shape[axis])).reshape(-1, *[1] * own))
        else:
            array = entry if _is_array(entry) else np.asarray(entry)
            reshape = np.reshape if isinstance(array, np.ndarray) else array_api.reshape
            places.append(reshape(array, (*array.shape, *[1] * behind)))
        axis += 1
    return places


def _check_mask(shape: tuple[int, ...], extents: tuple[int, ...]) -> None:
    if not shape:
        raise IndexError(
            "a zero-dimensional mask cannot be combined with an ellipsis that expands to no "
            "dimension; omit the ellipsis"
        )
    if shape != extents:
        raise IndexError(
            f"a mask of shape {list(shape)} does not fit dimensions of the extents {list(extents)}"
        )


def _is_slice_or_axis(entry: Any) -> bool:
    return entry is None or isinstance(entry, slice)


def _is_array(entry: Any) -> bool:
    return not isinstance(entry, slice | int | None)


def _dimensions_of(entry: Any) -> int:
    """Return the number of the tensor's dimensions that an entry consumes."""
    if entry is None:
        return 0
    is_mask = hasattr(entry, "dtype") and np.dtype(entry.dtype) == np.bool
    return len(entry.shape) if is_mask else 1
