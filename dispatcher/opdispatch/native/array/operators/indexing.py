"""Indexing and assignment: the operators behind ``x[1:, 0]`` and ``x[mask] = 0``.

A schema has no type for slices, so an index is four lists with one item for each entry:

    ====================  =====  ====  ====  =======
    entry                 start  stop  step  indices
    ====================  =====  ====  ====  =======
    ``first:last:by``     first  last  by
    ``7``                 7
    ``None``, a new axis
    an array                                 it
    ====================  =====  ====  ====  =======

Blank items are None, and ``indices`` is empty if no entry is an array. The entries together have
NumPy's semantics. Basic indices give views.

https://data-apis.org/array-api/2025.12/API_specification/indexing.html
https://numpy.org/doc/stable/user/basics.indexing.html
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.memory_overlap import INTERNAL_OVERLAP, has_internal_overlap
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.native.array.operators.functions import ArrayFunction
from opdispatch.native.array.operators.meta_shapes import Shape, broadcast, refusal
from opdispatch.native.array.operators.type_promotion import check_complex
from opdispatch.schema.parser import parse_schema

Entries = Sequence[int | None]

_COMPLEX = np.dtype(complex)

_ENTRIES = "int?[] start, int?[] stop, int?[] step"

INDEXING = tuple(
    ArrayFunction(parse_schema(text))
    for text in (
        f"getitem(Tensor(a) x, {_ENTRIES}) -> Tensor(a)",
        f"getitem.Tensor(Tensor x, {_ENTRIES}, Tensor?[] indices) -> Tensor",
        f"setitem_.Scalar(Tensor(a!) x, {_ENTRIES}, Tensor?[] indices, Scalar value) -> Tensor(a!)",
        f"setitem_.Tensor(Tensor(a!) x, {_ENTRIES}, Tensor?[] indices, Tensor value) -> Tensor(a!)",
    )
)
"""Its operators."""


def getitem(x: Any, start: Entries, stop: Entries, step: Entries, indices: Any = ()) -> Any:
    """Return ``x[...]`` for an array of any library.

    Raises ArgumentError for lists of different lengths, and the library's IndexError.
    """
    if not indices and len(start) == 1 == len(stop) == len(step):  # what `_make_index` returns
        by = step[0]
        return x[start[0], ...] if by is None else x[start[0] : stop[0] : by, ...]
    return x[_make_index("getitem", start, stop, step, indices)]


def setitem(
    x: Any, start: Entries, stop: Entries, step: Entries, indices: Sequence[Any], value: Any
) -> Any:
    """Write ``x[...] = value`` and return ``x``.

    Raises ArgumentError if elements of ``x`` share memory, or for a complex ``value`` and a real
    ``x``; the array library's IndexError; ValueError if ``value`` does not broadcast.
    """
    if 0 in getattr(x, "strides", ()):
        _check_no_overlap(x)
    if getattr(value, "dtype", _COMPLEX).kind == "c":
        _check_value(x, value)
    is_whole = not (start or stop or step or indices)
    x[... if is_whole else _make_index("setitem_", start, stop, step, indices)] = value
    return x


def _check_value(x: Any, value: Any) -> None:
    """Raise ArgumentError if ``value`` is complex and ``x`` is not."""
    dtype = getattr(value, "dtype", _COMPLEX if type(value) is complex else None)
    if dtype is not None and dtype.kind == "c":
        check_complex("setitem_", dtype, x.dtype)


def _check_no_overlap(x: Any) -> None:
    """Raise ArgumentError if elements of ``x`` share memory."""
    if has_internal_overlap(x.shape, x.strides):
        raise refusal(
            "setitem_",
            f"cannot write to a tensor of which {INTERNAL_OVERLAP}; write to a copy of it",
        )


def meta_getitem(
    x: MetaArray, start: Entries, stop: Entries, step: Entries, indices: Any = ()
) -> MetaArray:
    """Return a meta array of the shape of ``x[...]``.

    Raises ArgumentError for masks, whose result shape depends on their elements, and IndexError.
    """
    return MetaArray(_shape_of("getitem", x.shape, start, stop, step, indices), x.dtype)


def meta_setitem(
    x: MetaArray, start: Entries, stop: Entries, step: Entries, indices: Sequence[Any], value: Any
) -> MetaArray:
    """Return ``x``. Raises ArgumentError if ``value`` does not broadcast to the selection."""
    _check_value(x, value)
    if not hasattr(value, "shape"):
        np.empty((), x.dtype)[()] = value  # raises OverflowError
    shape = _shape_of("setitem_", x.shape, start, stop, step, indices)
    given = tuple(getattr(value, "shape", ()))
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    if broadcast("setitem_", shape, given) != shape:
        raise refusal("setitem_", f"cannot write shape {list(given)} to shape {list(shape)}")
    return x


def _make_index(
    name: str, start: Entries, stop: Entries, step: Entries, indices: Sequence[Any]
) -> tuple[Any, ...]:
    count = len(start)
    if len(stop) != count or len(step) != count or (indices and len(indices) != count):
        raise refusal(
            name,
            f"has {count} starts, {len(stop)} stops, {len(step)} steps and {len(indices)} indices "
            "of entries; expected as many of each, or no indices",
        )
    entries: list[Any] = []
    for first, last, by, array in itertools.zip_longest(start, stop, step, indices):
        if array is not None:
            entries.append(array)
        elif by is not None:
            entries.append(slice(first, last, by))
        else:
            entries.append(first)
    # With the ellipsis, selecting one element gives a 0-d array, which can be written to.
    return (*entries, ...)


def _shape_of(
    name: str,
    shape: Shape,
    start: Entries,
    stop: Entries,
    step: Entries,
    indices: Sequence[Any],
) -> Shape:
    index = _make_index(name, start, stop, step, indices)
    # Index a NumPy array of one broadcast element: it allocates no memory for the shape.
    whole: np.ndarray[Any, Any] = np.broadcast_to(np.empty((), np.bool), shape)
    places = [place for place, entry in enumerate(index) if hasattr(entry, "shape")]
    if not places:
        return tuple(whole[index].shape)
    for place in places:
        if index[place].dtype.kind not in "iu":
            raise refusal(name, f"takes integer indices on meta, not {index[place].dtype}")
    joint = broadcast(name, *(tuple(index[place].shape) for place in places))
    # Integers count as 0-d arrays. Adjacent advanced entries are replaced in place, else in front.
    advanced = [
        place for place, entry in enumerate(index) if place in places or isinstance(entry, int)
    ]
    kept = whole[tuple(slice(None) if place in advanced else e for place, e in enumerate(index))]
    is_joined = advanced[-1] - advanced[0] + 1 == len(advanced)
    at = advanced[0] if is_joined else 0
    rest = tuple(extent for axis, extent in enumerate(kept.shape) if axis not in advanced)
    return (*rest[:at], *joint, *rest[at:])
