"""Batching rules of indexing and assignment.

An index is four lists, of starts, stops, steps and arrays: see ``operators/indexing.py``. Arrays,
and integers in an index with arrays, are *advanced* entries: they broadcast to the joint
dimensions, which replace the advanced entries if these are adjacent, and else come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import with_ndim
from opdispatch.native.array.batching.manipulation import by_elements
from opdispatch.native.array.derivatives.namespace import OPERATORS, xp
from opdispatch.native.array.operators.meta_shapes import Shape, broadcast, refusal


class _Index:
    """An index into samples, with masks replaced by the integer arrays of ``nonzero``."""

    def __init__(self, call: BatchedCall, has_arrays: bool) -> None:
        self.start, self.stop, self.step = (list(each) for each in call.args[1:4])
        self.arrays = list(call.args[4]) if has_arrays and call.args[4] else []
        self.dims = list(call.dims[4]) if self.arrays else []
        self._expand_masks(call)

    def _expand_masks(self, call: BatchedCall) -> None:
        """Replace each mask by one integer array for each of its dimensions."""
        place = 0
        while place < len(self.arrays):
            array = self.arrays[place]
            if array is None or array.dtype.kind != "b":
                place += 1
                continue
            if self.dims[place] is not None:
                raise by_elements(call, "the elements of a mask")
            if array.ndim == 0:
                raise refusal(call.name, "of a batch takes no mask without dimensions")
            found = list(xp.nonzero(array))
            count = len(found)
            self.arrays[place : place + 1] = found
            self.dims[place : place + 1] = [None] * count
            for entries in (self.start, self.stop, self.step):
                entries[place : place + 1] = [None] * count
            place += count

    @property
    def is_batched(self) -> bool:
        """Whether an index array is batched, so that samples are indexed differently."""
        return 0 in self.dims

    def is_advanced(self, place: int) -> bool:
        """Return whether the entry is an array, or an integer in an index with arrays."""
        if not self.arrays:
            return False
        is_number = self.start[place] is not None and self.step[place] is None
        return self.arrays[place] is not None or is_number

    @property
    def joint(self) -> Shape:
        """The shape of the joint dimensions of a sample."""
        pairs = zip(self.arrays, self.dims, strict=True)
        shapes = [
            tuple(x.shape) if dim is None else tuple(x.shape[1:])
            for x, dim in pairs
            if x is not None
        ]
        return broadcast("getitem", *shapes)

    @property
    def place_of_joint(self) -> int:
        """Number of dimensions of a result that precede the joint ones."""
        advanced = [n for n in range(len(self.start)) if self.is_advanced(n)]
        if advanced[-1] - advanced[0] + 1 != len(advanced):
            return 0
        return advanced[0]  # earlier entries are slices and new axes: one dimension each

    def under_batch(self) -> list[Any]:
        """Return the index lists for a batched tensor: a full slice, then the unbatched entries."""
        arrays = [None, *self.arrays] if self.arrays else []
        return [[None, *self.start], [None, *self.stop], [1, *self.step], arrays]

    def of_each(self, batch_size: int, device: str, has_batch: bool) -> list[Any]:
        """Return the index lists for batched index arrays.

        If the indexed tensor has a batch, the first entry is an array of sample numbers.
        """
        ndim = len(self.joint)
        pairs = zip(self.arrays, self.dims, strict=True)
        arrays = [None if x is None else with_ndim(x, dim, ndim) for x, dim in pairs]
        lists = [self.start, self.stop, self.step, arrays]
        if not has_batch:
            return lists
        samples = xp.reshape(xp.arange(batch_size, device=device), (batch_size, *[1] * ndim))
        return [[None, *self.start], [None, *self.stop], [None, *self.step], [samples, *arrays]]


def _getitem(call: BatchedCall) -> tuple[Any, Any]:
    x, index = call.args[0], _Index(call, has_arrays=False)
    _check(call, index)
    start, stop, step, _ = index.under_batch()
    return call.run([x, start, stop, step]), 0


def _getitem_arrays(call: BatchedCall) -> tuple[Any, Any]:
    x, index = call.args[0], _Index(call, has_arrays=True)
    _check(call, index)
    if not index.arrays:
        start, stop, step, _ = index.under_batch()
        return OPERATORS.getitem.default(x, start, stop, step), 0
    at, ndim = index.place_of_joint, len(index.joint)
    if not index.is_batched:
        found = call.run([x, *index.under_batch()])
        return found, 0 if _is_in_place(index) else ndim
    if call.dims[0] is None:
        return call.run([x, *index.of_each(call.batch_size, x.device, has_batch=False)]), at
    found = call.run([x, *index.of_each(call.batch_size, x.device, has_batch=True)])
    # The result is (B, *joint, *rest): move the joint dimensions behind `at` of the rest.
    order = [0, *range(ndim + 1, ndim + 1 + at), *range(1, ndim + 1)]
    return xp.permute_dims(found, [*order, *range(ndim + 1 + at, found.ndim)]), 0


def _is_in_place(index: _Index) -> bool:
    """Return whether the advanced entries are adjacent."""
    advanced = [n for n in range(len(index.start)) if index.is_advanced(n)]
    return advanced[-1] - advanced[0] + 1 == len(advanced)


def _check(call: BatchedCall, index: _Index) -> None:
    """Raise IndexError for more entries than a sample has dimensions."""
    taken = sum(
        index.step[n] is not None or index.is_advanced(n) or index.start[n] is not None
        for n in range(len(index.start))
    )
    if taken > call.ndim(0):
        raise IndexError(
            f"too many indices for a sample of {call.ndim(0)} dimensions: {taken} were given"
        )


def _set_scalar(call: BatchedCall) -> tuple[Any, Any]:
    x, value = call.args[0], call.args[5]
    if (mask := _only_mask(call)) is not None:
        x[...] = xp.where(_mask_like(call, mask), value, x)
        return x, 0
    index = _Index(call, has_arrays=True)
    _check(call, index)
    if index.is_batched:
        lists = index.of_each(call.batch_size, x.device, has_batch=True)
    else:
        lists = index.under_batch()
    return call.run([x, *lists, value]), 0


def _set_tensor(call: BatchedCall) -> tuple[Any, Any]:
    x, value = call.args[0], call.args[5]
    mask = _only_mask(call)
    if mask is not None and call.ndim(5) == 0:
        value = with_ndim(value, call.dims[5], call.ndim(0))
        x[...] = xp.astype(xp.where(_mask_like(call, mask), value, x), x.dtype)
        return x, 0
    index = _Index(call, has_arrays=True)
    _check(call, index)
    shape = _selected_shape(call.shape(0), index)
    value = _of_shape(call, value, shape)
    if not index.arrays:
        return call.run([x, *index.under_batch(), value]), 0
    at, ndim = index.place_of_joint, len(index.joint)
    if index.is_batched:
        lists = index.of_each(call.batch_size, x.device, has_batch=True)
        order = [0, *range(1 + at, 1 + at + ndim), *range(1, 1 + at)]
        value = xp.permute_dims(value, [*order, *range(1 + at + ndim, value.ndim)])
    else:
        lists = index.under_batch()
        if not _is_in_place(index):
            value = xp.moveaxis(value, 0, ndim)
    return call.run([x, *lists, value]), 0


def _only_mask(call: BatchedCall) -> Any:
    """Return the mask if the index is one batched mask, else None."""
    arrays, dims = call.args[4], call.dims[4]
    if len(arrays) != 1 or dims[0] is None or arrays[0].dtype.kind != "b":
        return None
    return arrays[0]


def _mask_like(call: BatchedCall, mask: Any) -> Any:
    """Return a batched mask, reshaped to broadcast with the target.

    Raises IndexError if its shape is not a prefix of the sample's.
    """
    shape = tuple(mask.shape[1:])
    if shape != call.shape(0)[: len(shape)]:
        raise IndexError(
            f"a mask of shape {list(shape)} does not fit a sample of shape {list(call.shape(0))}"
        )
    return xp.reshape(mask, (*mask.shape, *[1] * (call.ndim(0) - len(shape))))


def _selected_shape(shape: Shape, index: _Index) -> Shape:
    """Return the shape of the selection from a sample. Raises IndexError."""
    whole: np.ndarray[Any, Any] = np.broadcast_to(np.empty((), np.bool), shape)
    entries: list[Any] = []
    for n in range(len(index.start)):
        if index.is_advanced(n):
            # An empty slice stands for the axis; the joint shape replaces it.
            entries.append(slice(0, 0))
        elif index.step[n] is not None:
            entries.append(slice(index.start[n], index.stop[n], index.step[n]))
        else:
            entries.append(index.start[n])
    kept = whole[(*entries, ...)].shape
    if not index.arrays:
        return tuple(kept)
    advanced = [n for n in range(len(index.start)) if index.is_advanced(n)]
    rest = [extent for axis, extent in enumerate(kept) if axis not in advanced]
    at = index.place_of_joint
    return (*rest[:at], *index.joint, *rest[at:])


def _of_shape(call: BatchedCall, value: Any, shape: Shape) -> Any:
    """Return the value to write, batched and broadcast to ``shape``.

    Raises ArgumentError if it does not broadcast.
    """
    is_batched = call.dims[5] is not None
    given = call.shape(5)
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    if broadcast(call.name, given, shape) != shape:
        raise refusal(call.name, f"cannot write shape {list(given)} to shape {list(shape)}")
    first = (value.shape[0],) if is_batched else ()
    value = with_ndim(xp.reshape(value, (*first, *given)), call.dims[5], len(shape))
    return xp.broadcast_to(value, (call.batch_size, *shape))


INDEXING: dict[str, Rule] = {
    "getitem": _getitem,
    "getitem.Tensor": _getitem_arrays,
    "setitem_.Scalar": _set_scalar,
    "setitem_.Tensor": _set_tensor,
}
