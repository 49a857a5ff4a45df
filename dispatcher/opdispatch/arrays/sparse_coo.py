"""The sparse_coo layout (coordinates and values): keys ``SparseCPU`` and ``SparseCUDA``.

Its arrays are ``scipy.sparse.coo_array`` and ``coo_matrix``, and ``cupyx.scipy.sparse.coo_matrix``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.backends import device_of, find_backend
from opdispatch.arrays.layout import (
    Facts,
    check_indices,
    check_range,
    check_shape,
    making,
    namespace_of,
)
from opdispatch.arrays.size_limits import check_elements
from opdispatch.arrays.sparse import (
    SparseLayout,
    check_extents,
    check_values,
    sparse_module,
)
from opdispatch.keys.dispatch_key import DispatchKey


class SparseCoo(SparseLayout):
    """``indices`` of shape [dimensions, n], and ``values`` of shape [n]."""

    name = pytorch_name = "sparse_coo"
    functionality = DispatchKey.Sparse
    class_names = frozenset({"coo_array", "coo_matrix"})
    part_names = ("indices", "values")
    index_parts = frozenset({"indices"})

    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return ``indices``, copied into one array of shape [dimensions, n], and ``values``.

        Raises ArgumentError if the coordinate arrays no longer have equal lengths.
        """
        with self.making("one array of all indices", array):
            if hasattr(array, "coords"):
                return np.stack(array.coords), array.data
            return namespace_of(array.row).stack([array.row, array.col]), array.data  # CuPy's

    def nbytes(self, array: Any) -> int:
        """Return the size in bytes of all parts, without copying the indices into one array."""
        rows = array.coords if hasattr(array, "coords") else (array.row, array.col)
        is_one_array = len({type(row) for row in rows}) == 1 and find_backend(type(rows[0]))
        if not is_one_array or len({(row.shape, row.dtype) for row in rows}) != 1:
            return super().nbytes(array)  # ``parts`` raises for arrays that do not fit together
        self.check_arrays((rows[0], array.data))
        counted = (*rows, array.data)
        return sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in counted)

    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless ``indices`` has a row per dimension and a column per value."""
        indices, values = parts
        check_extents(facts.shape, "at least one dimension", at, fits=bool(facts.shape))
        check_values(values, f"{at}values")
        check_shape(values, f"{at}values", (None,))
        check_indices(indices, f"{at}indices", (len(facts.shape), values.shape[0]))

    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless each index is in range for its dimension."""
        for dimension, extent in enumerate(facts.shape):
            check_range(parts[0][dimension], f"{at}indices[{dimension}]", extent)

    def assemble(self, parts: Sequence[Any], facts: Facts) -> Any:
        """Return a ``coo_array``, or CuPy's ``coo_matrix``."""
        indices, values = parts
        module = sparse_module(values)
        make = getattr(module, "coo_array", None) or module.coo_matrix
        with making(f"a sparse_coo array of shape {list(facts.shape)}", device_of(values)):
            return make((values, tuple(indices)), shape=facts.shape)

    def unbind(self, array: Any, axis: int) -> list[Any]:
        """Return the slices along ``axis``, sparse_coo arrays with one dimension less.

        The slices of a one-dimensional array are dense zero-dimensional arrays. Values keep their
        order. Raises ArgumentError if the axis is too long for a list of slices, or if the array
        library rejects a slice.
        """
        shape = tuple(array.shape)
        if len(shape) == 1:
            dense = self.to_dense(array)
            return [dense[n, ...] for n in range(shape[0])]
        indices, values = self.parts(array)
        with self.making(f"{shape[axis]} sparse_coo arrays", array):
            check_elements((shape[axis] + 1,))
            xp = namespace_of(values)
            order = xp.argsort(indices[axis], stable=True)
            ends = xp.searchsorted(indices[axis][order], xp.arange(shape[axis] + 1)).tolist()
        rest = Facts((*shape[:axis], *shape[axis + 1 :]))
        others = [row[order] for n, row in enumerate(indices) if n != axis]
        return [
            self.assemble(([row[a:b] for row in others], values[order[a:b]]), rest)
            for a, b in itertools.pairwise(ends)
        ]

    def from_dense(self, array: Any) -> Any:
        """Return a sparse array of the nonzero elements.

        Raises ArgumentError for no dimensions or an unsupported dtype, and DeviceError for a device
        without sparse arrays.
        """
        check_values(array, "the tensor to convert to sparse_coo")
        module = sparse_module(array)
        make = getattr(module, "coo_array", None) or module.coo_matrix
        with making(f"a sparse_coo array of shape {list(array.shape)}", device_of(array)):
            if not array.shape:
                raise ValueError("it needs at least one dimension")
            return make(array)

    def coalesced(self, array: Any) -> Any:
        """Return an array with sorted, unique coordinates, summing the values of duplicates."""
        if getattr(array, "has_canonical_format", False):
            return array
        other = array.copy()
        other.sum_duplicates()
        return other

    def _own_arrays(self) -> tuple[str, ...]:
        return ("coords", "data")
