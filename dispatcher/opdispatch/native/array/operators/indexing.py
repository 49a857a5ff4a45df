"""Indexing and assignment: what ``x[1:, 0]`` and ``x[mask] = 0`` call.

A schema has no type for slices, so an index is four lists with an item for each of its entries:

    ====================  =====  ====  ====  =======
    entry                 start  stop  step  indices
    ====================  =====  ====  ====  =======
    ``first:last:by``     first  last  by
    ``7``                 7
    ``None``, a new axis
    an array                                 it
    ====================  =====  ====  ====  =======

What is left out is None, and ``indices`` is empty where there is no array. The entries mean what
they mean to NumPy, all of them together. Basic indices give views.

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
    """Return ``x[...]`` of any array library. Raises ArgumentError, and its IndexError."""
    if not indices and len(start) == 1 == len(stop) == len(step):  # what `_make_index` returns
        by = step[0]
        return x[start[0], ...] if by is None else x[start[0] : stop[0] : by, ...]
    return x[_make_index("getitem", start, stop, step, indices)]


def setitem(
    x: Any, start: Entries, stop: Entries, step: Entries, indices: Sequence[Any], value: Any
) -> Any:
    """Write ``x[...] = value``.

    Raises ArgumentError, and the array library's IndexError, ValueError.
    """
    if 0 in getattr(x, "strides", ()):
        _check_no_overlap(x)
    if getattr(value, "dtype", _COMPLEX).kind == "c":
        _check_value(x, value)
    is_whole = not (start or stop or step or indices)
    x[... if is_whole else _make_index("setitem_", start, stop, step, indices)] = value
    return x


def _check_value(x: Any, value: Any) -> None:
    """Raise ArgumentError for complex numbers that would lose their imaginary parts."""
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
    """Return the shape of ``x[...]``. Raises ArgumentError for masks: their elements decide."""
    return MetaArray(_shape_of("getitem", x.shape, start, stop, step, indices), x.dtype)


def meta_setitem(
    x: MetaArray, start: Entries, stop: Entries, step: Entries, indices: Sequence[Any], value: Any
) -> MetaArray:
    """Return ``x`` if ``value`` can be written there. Raises ArgumentError."""
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
    # NumPy says it of an array in which all elements are one: nothing is as large as its shape.
    whole: np.ndarray[Any, Any] = np.broadcast_to(np.empty((), np.bool), shape)
    places = [place for place, entry in enumerate(index) if hasattr(entry, "shape")]
    if not places:
        return tuple(whole[index].shape)
    for place in places:
        if index[place].dtype.kind not in "iu":
            raise refusal(name, f"has no shape for an index of {index[place].dtype} on meta")
    joint = broadcast(name, *(tuple(index[place].shape) for place in places))
    # Numbers count as arrays without dimensions; those that are next to each other stay there.
    advanced = [
        place for place, entry in enumerate(index) if place in places or isinstance(entry, int)
    ]
    kept = whole[tuple(slice(None) if place in advanced else e for place, e in enumerate(index))]
    is_joined = advanced[-1] - advanced[0] + 1 == len(advanced)
    at = advanced[0] if is_joined else 0
    rest = tuple(extent for axis, extent in enumerate(kept.shape) if axis not in advanced)
    return (*rest[:at], *joint, *rest[at:])
