"""Methods of tensors of other layouts than the dense one, as PyTorch's tensors have them.

https://docs.pytorch.org/docs/2.13/sparse.html, quantization.html and nested.html
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from opdispatch import arrays
from opdispatch.arrays import Layout
from opdispatch.arrays.extents import check_elements
from opdispatch.arrays.layouts import NESTED, QUANTIZED, SPARSE_COO, SPARSE_CSR
from opdispatch.arrays.level_array import LevelArray
from opdispatch.arrays.sparse import SparseLayout
from opdispatch.autograd.inference_tensor import is_inference, make_inference
from opdispatch.autograd.to_copy import record_without_derivative
from opdispatch.errors import ArgumentError, TransformError
from opdispatch.local_state.grad_mode import is_inference_mode_enabled
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.local_state.tracing_state import note_reading


class TensorLayouts:
    """A base of ``Tensor``, which has an ``array``.

    A method of a layout that the tensor has not raises ArgumentError. Tensors that methods return
    share their memory with this one where the elements are the same.
    """

    __slots__ = ()

    array: Any
    _over: Any
    """``Tensor._over``: a tensor of this class over an array."""

    @property
    def _other_layout(self) -> Layout | None:
        """None for a dense tensor."""
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
        """Whether its elements are integers that stand for real numbers."""
        return self._has(QUANTIZED)

    @property
    def is_nested(self) -> bool:
        """Whether it consists of arrays of different lengths."""
        return self._has(NESTED)

    @property
    def size(self) -> int:
        """How many elements it has; of a nested tensor, those of all components."""
        layout = self._other_layout
        array = self.array if layout is None or not self.is_nested else layout.elements(self.array)
        return math.prod(array.shape)

    # -- sparse ---------------------------------------------------------------------------------

    def to_sparse(self) -> Self:
        """Return the tensor as sparse_coo: itself, if it is, or a copy without what is 0.

        Raises ArgumentError for other than dense and sparse tensors, DeviceError where there are no
        sparse arrays, for instance without SciPy, and DeviceMemoryError.
        """
        if self.is_sparse:
            return self
        if self.is_sparse_csr:
            return self._of(self.array.tocoo())
        self._require_dense("be made sparse")
        return self._of(SPARSE_COO.from_dense(self.array))

    def to_sparse_csr(self) -> Self:
        """Return the matrix as sparse_csr: itself, if it is. Raises as ``to_sparse``."""
        if self.is_sparse_csr:
            return self
        if self.is_sparse:
            if len(self.array.shape) != 2:
                raise ArgumentError(
                    f"a tensor of shape {list(self.array.shape)} cannot be sparse_csr; expected "
                    "two dimensions"
                )
            with SPARSE_COO.making(f"a sparse_csr array of {list(self.array.shape)}", self.array):
                check_elements((self.array.shape[0] + 1,))  # a place for each row
                made = self.array.tocsr()
            return self._of(made)
        self._require_dense("be made sparse")
        return self._of(SPARSE_CSR.from_dense(self.array))

    def to_dense(self) -> Self:
        """Return the tensor with all of its zeros: itself, if it is dense or quantized.

        Raises ArgumentError for nested tensors, and for a shape that no memory has, and
        DeviceMemoryError.
        """
        layout = self._other_layout
        if layout is None or layout is QUANTIZED:
            return self
        if not isinstance(layout, SparseLayout):
            raise self._refusal("be made dense")
        return self._of(layout.to_dense(self.array))

    def coalesce(self) -> Self:
        """Return the sparse_coo tensor with its places in order, values of one place added up."""
        self._require("coalesce", SPARSE_COO)
        coalesced = SPARSE_COO.coalesced(self.array)
        return self._of(coalesced, is_view=coalesced is self.array)

    def indices(self) -> Self:
        """Return the places of a sparse_coo tensor's values, int64 of shape [dimensions, n].

        As they are stored: in any order, and some more than once unless it is coalesced.
        """
        layout = self._require("indices", SPARSE_COO)
        indices = layout.parts(self.array)[0].astype(np.int64, copy=False)
        return self._of(indices, is_view=True)

    _indices = indices  # PyTorch's name of what is stored, coalesced or not

    def _values(self) -> Self:
        """Return the values of a sparse_coo tensor as they are stored, by PyTorch's name."""
        self._require("_values", SPARSE_COO)
        return self.values()

    def crow_indices(self) -> Self:
        """Return where each row of a sparse_csr tensor begins in ``values``, and the end."""
        return self._part("crow_indices", SPARSE_CSR)

    def col_indices(self) -> Self:
        """Return the column of each value of a sparse_csr tensor."""
        return self._part("col_indices", SPARSE_CSR)

    def values(self) -> Self:
        """Return the values of a sparse tensor, or of all components of a nested one, in a row."""
        return self._part("values", SPARSE_COO, SPARSE_CSR, NESTED)

    # -- quantized ------------------------------------------------------------------------------

    def dequantize(self) -> Self:
        """Return the real numbers, in float32: ``(int_repr - zero_point) * scale``.

        A dense tensor is converted to float32. Raises ArgumentError for sparse and nested ones.
        """
        if self.is_quantized:
            return self._of(self.array.dequantize())
        self._require_dense("be dequantized")
        return self if self.array.dtype == np.float32 else self._of(self.array.astype(np.float32))

    def int_repr(self) -> Self:
        """Return the integers of a quantized tensor."""
        return self._part("int_repr", QUANTIZED)

    def q_scale(self) -> float:
        """Return the real number that a step of a quantized tensor's integers stands for."""
        self._require("q_scale", QUANTIZED)
        return float(self.array.scale)

    def q_zero_point(self) -> int:
        """Return the integer of a quantized tensor that stands for 0."""
        self._require("q_zero_point", QUANTIZED)
        return int(self.array.zero_point)

    # -- nested ---------------------------------------------------------------------------------

    def offsets(self) -> Self:
        """Return where each component of a nested tensor begins in ``values``, and the end."""
        return self._part("offsets", NESTED)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the components of a nested tensor, or the items of another one along ``dim``.

        They are views, but for those of sparse tensors, which are sparse_coo, and without
        dimensions dense. Raises ArgumentError for a dimension that there is not.
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
        """Return a dense tensor of a nested one's components, each as long as the longest.

        Raises ArgumentError for a padding that is not a number of its dtype, and DeviceMemoryError.
        """
        self._require("to_padded_tensor", NESTED)
        return self._of(self.array.to_padded(padding))

    # -- for Tensor -----------------------------------------------------------------------------

    def _of(self, array: Any, *, is_view: bool = False) -> Self:
        """Return a tensor made of this one.

        An inference tensor in that mode, and a part of one if it is one itself.
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
            raise ArgumentError(f"{method} is of a {wanted} tensor, and this one is {kind}")
        return layout

    def _require_dense(self, action: str) -> None:
        if isinstance(self.array, LevelArray):
            raise TransformError(
                f"a tensor within a function that is transformed cannot {action}: what is computed "
                "with it would be lost to the transform",
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
        """Describe the array as text; of another layout, its parts by name."""
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
