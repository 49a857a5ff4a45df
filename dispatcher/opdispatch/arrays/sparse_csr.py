"""The sparse_csr layout (compressed rows): keys ``SparseCsrCPU`` and ``SparseCsrCUDA``.

Its arrays are ``scipy.sparse.csr_array`` and ``csr_matrix``, and ``cupyx.scipy.sparse.csr_matrix``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.backends import device_of
from opdispatch.arrays.layout import (
    Facts,
    check_indices,
    check_range,
    check_shape,
    check_starts,
    making,
)
from opdispatch.arrays.sparse import (
    SparseLayout,
    check_extents,
    check_values,
    sparse_module,
)
from opdispatch.keys.dispatch_key import DispatchKey


class SparseCsr(SparseLayout):
    """``crow_indices`` of shape [rows + 1], ``col_indices`` and ``values`` of shape [n].

    Row i has ``values[crow_indices[i] : crow_indices[i + 1]]``. A one-dimensional array, which
    SciPy supports and PyTorch does not, has one row.
    """

    name = pytorch_name = "sparse_csr"
    functionality = DispatchKey.SparseCsr
    class_names = frozenset({"csr_array", "csr_matrix"})
    part_names = ("crow_indices", "col_indices", "values")
    index_parts = frozenset({"crow_indices", "col_indices"})

    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return ``crow_indices``, ``col_indices`` and ``values``, as views where possible.

        SciPy's arrays may be longer than the last row requires; the excess is cut off.
        """
        starts, columns, values = array.indptr, array.indices, array.data
        if type(starts) is type(columns) is type(values) is np.ndarray and starts.size:
            end = starts.item(-1)
            if columns.shape == values.shape == (values.size,) and 0 <= end < values.size:
                return starts, columns[:end], values[:end]
        return starts, columns, values

    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless ``crow_indices`` has shape [rows + 1], the others [n]."""
        crow_indices, col_indices, values = parts
        dimensions = len(facts.shape)
        check_extents(facts.shape, "one dimension or two", at, fits=dimensions in (1, 2))
        rows = facts.shape[0] if dimensions == 2 else 1
        check_values(values, f"{at}values")
        check_shape(values, f"{at}values", (None,))
        check_indices(crow_indices, f"{at}crow_indices", (rows + 1,))
        check_indices(col_indices, f"{at}col_indices", (values.shape[0],))

    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless rows are in order and each column index is in range."""
        crow_indices, col_indices, values = parts
        check_starts(crow_indices, f"{at}crow_indices", int(values.shape[0]))
        check_range(col_indices, f"{at}col_indices", facts.shape[-1])

    def assemble(self, parts: Sequence[Any], facts: Facts) -> Any:
        """Return a ``csr_array``, or CuPy's ``csr_matrix``."""
        crow_indices, col_indices, values = parts
        module = sparse_module(values)
        make = getattr(module, "csr_array", None) or module.csr_matrix
        with making(f"a sparse_csr array of shape {list(facts.shape)}", device_of(values)):
            array = make((values, col_indices, crow_indices), shape=facts.shape)
        array.data = values  # SciPy copies a view of a much larger array; keep the view
        return array

    def from_dense(self, array: Any) -> Any:
        """Return a sparse array of the nonzero elements of a matrix.

        Raises ArgumentError for other than two dimensions or an unsupported dtype, and DeviceError
        for a device without sparse arrays.
        """
        check_values(array, "the tensor to convert to sparse_csr")
        module = sparse_module(array)
        make = getattr(module, "csr_array", None) or module.csr_matrix
        with making(f"a sparse_csr array of shape {list(array.shape)}", device_of(array)):
            if len(array.shape) != 2:
                raise ValueError("it needs two dimensions")
            return make(array)

    def _own_arrays(self) -> tuple[str, ...]:
        return ("indptr", "indices", "data")
