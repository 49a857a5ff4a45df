"""PyTorch's methods of sparse, quantized and nested tensors.

https://docs.pytorch.org/docs/2.13/sparse.html, quantization.html and nested.html
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from opdispatch import arrays
from opdispatch.arrays import Layout
from opdispatch.arrays.layouts import NESTED, QUANTIZED, SPARSE_COO, SPARSE_CSR
from opdispatch.arrays.level_array import LevelArray
from opdispatch.arrays.size_limits import check_elements
from opdispatch.arrays.sparse import SparseLayout
from opdispatch.autograd.inference_tensor import is_inference, make_inference
from opdispatch.autograd.to_copy import record_without_derivative
from opdispatch.errors import ArgumentError, TransformError
from opdispatch.local_state.grad_mode import is_inference_mode_enabled
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.local_state.tracing_state import note_reading


class TensorLayouts:
    """A base class of ``Tensor`` with the methods specific to a layout.

    A method that does not apply to the tensor's layout raises ArgumentError. Results share memory
    with the tensor where they have the same elements.
    """

    __slots__ = ()

    array: Any
    _over: Any
    """``Tensor._over``: returns a tensor of this class over an array."""

    @property
    def _other_layout(self) -> Layout | None:
        """The layout; None for a dense tensor."""
        return arrays.find_layout(type(self.array))

    @property
    def layout(self) -> str:
        """``"strided"``, ``"sparse_coo"``, ``"sparse_csr"`` or ``"jagged"``, as in PyTorch.

        A quantized tensor is strided.
        """
        layout = self._other_layout
        return "strided" if layout is None else layout.pytorch_name

    @property
    def is_sparse(self) -> bool:
        """Whether the layout is sparse_coo."""
        return self._has(SPARSE_COO)

    @property
    def is_sparse_csr(self) -> bool:
        """Whether the layout is sparse_csr."""
        return self._has(SPARSE_CSR)

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor is quantized: its integers represent real numbers."""
        return self._has(QUANTIZED)

    @property
    def is_nested(self) -> bool:
        """Whether the tensor is nested: its components may differ in length."""
        return self._has(NESTED)

    @property
    def size(self) -> int:
        """The number of elements; for a nested tensor, the total of all components."""
        layout = self._other_layout
        array = self.array if layout is None or not self.is_nested else layout.elements(self.array)
        return math.prod(array.shape)

    # -- sparse ---------------------------------------------------------------------------------

    def to_sparse(self) -> Self:
        """Convert the tensor to sparse_coo, dropping zeros; return it as is if already sparse_coo.

        Raises ArgumentError unless the tensor is dense or sparse, DeviceError without sparse array
        support, for instance if SciPy is not installed, and DeviceMemoryError.
        """
        if self.is_sparse:
            return self
        if self.is_sparse_csr:
            return self._of(self.array.tocoo())
        self._require_dense("be made sparse")
        return self._of(SPARSE_COO.from_dense(self.array))

    def to_sparse_csr(self) -> Self:
        """Convert a matrix to sparse_csr; return it as is if already sparse_csr.

        Raises the errors of ``to_sparse``.
        """
        if self.is_sparse_csr:
            return self
        if self.is_sparse:
            if len(self.array.shape) != 2:
                raise ArgumentError(
                    f"a tensor of shape {list(self.array.shape)} cannot be sparse_csr; expected "
                    "two dimensions"
                )
            with SPARSE_COO.making(f"a sparse_csr array of {list(self.array.shape)}", self.array):
                check_elements((self.array.shape[0] + 1,))  # the row pointers
                made = self.array.tocsr()
            return self._of(made)
        self._require_dense("be made sparse")
        return self._of(SPARSE_CSR.from_dense(self.array))

    def to_dense(self) -> Self:
        """Convert a sparse tensor to a dense one; return a dense or quantized tensor as is.

        Raises ArgumentError for nested tensors and for shapes too large to allocate, and
        DeviceMemoryError.
        """
        layout = self._other_layout
        if layout is None or layout is QUANTIZED:
            return self
        if not isinstance(layout, SparseLayout):
            raise self._refusal("be made dense")
        return self._of(layout.to_dense(self.array))

    def coalesce(self) -> Self:
        """Return a sparse_coo tensor with sorted indices and the values of duplicates summed."""
        self._require("coalesce", SPARSE_COO)
        coalesced = SPARSE_COO.coalesced(self.array)
        return self._of(coalesced, is_view=coalesced is self.array)

    def indices(self) -> Self:
        """Return the indices of a sparse_coo tensor's values, int64 of shape [dimensions, n].

        They are returned as stored: unless the tensor is coalesced, in any order and possibly with
        duplicates.
        """
        layout = self._require("indices", SPARSE_COO)
        indices = layout.parts(self.array)[0].astype(np.int64, copy=False)
        return self._of(indices, is_view=True)

    _indices = indices  # PyTorch's name for the stored indices, coalesced or not

    def _values(self) -> Self:
        """Return the stored values of a sparse_coo tensor, under PyTorch's name."""
        self._require("_values", SPARSE_COO)
        return self.values()

    def crow_indices(self) -> Self:
        """Return the row pointers of a sparse_csr tensor, of shape [rows + 1].

        Entry i is the position in ``values`` of the first value of row i; the last is their number.
        """
        return self._part("crow_indices", SPARSE_CSR)

    def col_indices(self) -> Self:
        """Return the column index of each value of a sparse_csr tensor, of shape [n]."""
        return self._part("col_indices", SPARSE_CSR)

    def values(self) -> Self:
        """Return the values of a sparse tensor, or the concatenated components of a nested one."""
        return self._part("values", SPARSE_COO, SPARSE_CSR, NESTED)

    # -- quantized ------------------------------------------------------------------------------

    def dequantize(self) -> Self:
        """Convert a quantized tensor to float32: ``(int_repr - zero_point) * scale``.

        A dense tensor is cast to float32. Raises ArgumentError for sparse and nested tensors.
        """
        if self.is_quantized:
            return self._of(self.array.dequantize())
        self._require_dense("be dequantized")
        return self if self.array.dtype == np.float32 else self._of(self.array.astype(np.float32))

    def int_repr(self) -> Self:
        """Return the integers of a quantized tensor."""
        return self._part("int_repr", QUANTIZED)

    def q_scale(self) -> float:
        """Return the scale of a quantized tensor: the difference between adjacent values."""
        self._require("q_scale", QUANTIZED)
        return float(self.array.scale)

    def q_zero_point(self) -> int:
        """Return the zero point of a quantized tensor: the integer that represents 0.0."""
        self._require("q_zero_point", QUANTIZED)
        return int(self.array.zero_point)

    # -- nested ---------------------------------------------------------------------------------

    def offsets(self) -> Self:
        """Return the offsets of a nested tensor's components in ``values``: [components + 1]."""
        return self._part("offsets", NESTED)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the components of a nested tensor, or the slices of another tensor along ``dim``.

        They are views, except that slices of a sparse tensor are new sparse_coo tensors, or dense
        0-d ones. Raises ArgumentError if ``dim`` is out of range.
        """
        ndim = len(self.array.shape)
        if not -ndim <= dim < ndim:
            raise ArgumentError(
                f"a tensor of {ndim} dimensions has no items to unbind along dimension {dim}"
            )
        axis, layout = dim % ndim, self._other_layout
        if layout is None:
            return tuple(array_namespace().unstack(self, axis=axis))
        if layout is NESTED:
            if axis:
                raise ArgumentError(f"a nested tensor is unbound along dimension 0, and not {dim}")
            return tuple(self._of(each, is_view=True) for each in self.array.unbind())
        if layout is QUANTIZED:
            return tuple(self._of(each, is_view=True) for each in self.array.unbind(axis))
        whole = self.to_sparse()
        return tuple(self._of(each) for each in SPARSE_COO.unbind(whole.array, axis))

    def to_padded_tensor(self, padding: float) -> Self:
        """Return a dense tensor with a nested tensor's components padded to the longest.

        Raises ArgumentError for a ``padding`` that the dtype cannot represent, and
        DeviceMemoryError.
        """
        self._require("to_padded_tensor", NESTED)
        return self._of(self.array.to_padded(padding))

    # -- for Tensor -----------------------------------------------------------------------------

    def _of(self, array: Any, *, is_view: bool = False) -> Self:
        """Return a tensor over ``array``, derived from this one.

        A view is an inference tensor if this one is; any other result, in inference mode.
        """
        note_reading(self, "a tensor's method of its layout")
        made: Self = self._over(array, None)
        if is_inference(self) if is_view else is_inference_mode_enabled():
            make_inference(made)
        record_without_derivative(self, made)
        return made

    def _has(self, layout: Layout) -> bool:
        return self._other_layout is layout

    def _require(self, method: str, *layouts: Layout) -> Layout:
        layout = self._other_layout
        if layout is None or layout not in layouts:
            wanted = " or ".join(each.name for each in layouts)
            kind = "dense" if layout is None else layout.name
            raise ArgumentError(f"{method} requires a {wanted} tensor; this one is {kind}")
        return layout

    def _require_dense(self, action: str) -> None:
        if isinstance(self.array, LevelArray):
            raise TransformError(
                f"a tensor inside a function transform cannot {action}: the transform would "
                "not see what is computed",
                hint="use functions of opdispatch.array_api",
            )
        if self._other_layout is not None:
            raise self._refusal(action)

    def _refusal(self, action: str) -> ArgumentError:
        layout = self._other_layout
        assert layout is not None, "a dense tensor can"
        return ArgumentError(
            f"a {layout.name} tensor cannot {action}", hint=f"use {_WAYS_TO_DENSE[layout]}"
        )

    def _part(self, name: str, *layouts: Layout) -> Self:
        layout = self._require(name, *layouts)
        part = layout.parts(self.array)[layout.part_names.index(name)]
        return self._of(part, is_view=layout is not QUANTIZED)

    def _describe_array(self) -> str:
        """Describe the array as text; for a layout other than dense, its parts by name."""
        layout = self._other_layout
        if layout is None:
            return repr(self.array)
        facts = layout.facts(self.array)
        named = dict(zip(layout.part_names, layout.parts(self.array), strict=True))
        named |= {name: getattr(facts, name) for name in layout.fact_names}
        return ", ".join([*(f"{k}={v!r}" for k, v in named.items()), f"layout={layout.name!r}"])


_WAYS_TO_DENSE = {
    SPARSE_COO: "to_dense()",
    SPARSE_CSR: "to_dense()",
    QUANTIZED: "dequantize()",
    NESTED: "unbind() or to_padded_tensor(padding)",
}
