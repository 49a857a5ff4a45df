"""PyTorch's functions that create sparse, nested and quantized tensors from dense ones.

The inputs' memory is shared where possible. Invariants are always checked, as PyTorch does with
``check_invariants=True``, so kernels can rely on indices being in range.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from opdispatch import arrays
from opdispatch.arrays import LAYOUTS, Facts, NestedArray, checked_array
from opdispatch.arrays.layout import check_indices
from opdispatch.arrays.nested import nest
from opdispatch.arrays.quantized import quantize
from opdispatch.errors import ArgumentError
from opdispatch.tensors.tensor import Tensor, new_tensor


def sparse_coo_tensor(
    indices: Any, values: Any, size: Sequence[int] | None = None, *, requires_grad: bool = False
) -> Tensor:
    """Create a COO tensor with ``values`` ([n]) at ``indices`` ([dimensions, n]), and 0 elsewhere.

    Values at duplicate indices are summed. The default ``size`` is the smallest that contains all
    indices. Raises ArgumentError if indices, values and size do not match, and DeviceError for
    tensors on different devices or without sparse array support, for instance if SciPy is not
    installed. As ``torch.sparse_coo_tensor``.
    """
    places, elements = _indices(indices), _dense(values)
    LAYOUTS["sparse_coo"].check_arrays((places, elements))
    if size is None:
        if len(places.shape) != 2 or not places.shape[1]:
            raise ArgumentError(
                f"indices of shape {list(places.shape)} do not determine the size; expected shape "
                "[dimensions, n], or a size"
            )
        check_indices(places, "indices", (None, None))
        size = [int(row.max()) + 1 for row in places]
    return _made("sparse_coo", (places, elements), size, requires_grad)


def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    requires_grad: bool = False,
) -> Tensor:
    """Create a CSR matrix from ``crow_indices`` ([rows + 1]), ``col_indices`` and ``values`` ([n]).

    Row i has the values at ``crow_indices[i]`` up to ``crow_indices[i + 1]``, exclusive. The
    default ``size`` has as many columns as the column indices require. Raises the errors of
    ``sparse_coo_tensor``. As ``torch.sparse_csr_tensor``.
    """
    rows, columns, elements = _indices(crow_indices), _indices(col_indices), _dense(values)
    LAYOUTS["sparse_csr"].check_arrays((rows, columns, elements))
    if size is None:
        if len(rows.shape) != 1 or not rows.shape[0]:
            raise ArgumentError(f"crow_indices has shape {list(rows.shape)}; expected [rows + 1]")
        check_indices(columns, "col_indices", (None,))
        size = (rows.shape[0] - 1, int(columns.max()) + 1 if 0 not in columns.shape else 0)
    made = _made("sparse_csr", (rows, columns, elements), size, requires_grad)
    if made.ndim != 2:  # SciPy has 1-d CSR arrays, PyTorch does not
        raise ArgumentError(f"size is {list(made.shape)}; expected two dimensions")
    return made


def quantize_per_tensor(input: Any, scale: float, zero_point: int, dtype: DTypeLike) -> Tensor:
    """Quantize ``input / scale + zero_point``, rounded half to even and clamped to the dtype.

    ``dtype`` is ``"quint8"``, ``"qint8"`` or ``"qint32"``, or the equivalent NumPy dtype. ``input``
    is converted to float32; the results are those of PyTorch 2.13 on the CPU. Raises ArgumentError
    for another dtype, a scale that is not positive, or a zero point outside the dtype's range. As
    ``torch.quantize_per_tensor``.
    """
    return new_tensor(quantize(_dense(input), scale, zero_point, dtype))


def nested_tensor(tensor_list: Sequence[Any], *, requires_grad: bool = False) -> Tensor:
    """Create a nested tensor from copies of arrays whose shapes differ only in the first dimension.

    Raises ArgumentError for an empty list and for arrays that differ in other dimensions, and
    DeviceError for arrays on different devices. As ``torch.nested.nested_tensor``.
    """
    try:
        listed = iter(tensor_list)  # raises TypeError for a 0-d array, too
    except TypeError as error:
        raise ArgumentError(f"tensor_list is {tensor_list!r}; expected a list of arrays") from error
    components = [_dense(each) for each in listed]
    return new_tensor(nest(components), requires_grad=requires_grad)


def nested_tensor_from_jagged(values: Any, offsets: Any, *, requires_grad: bool = False) -> Tensor:
    """Create a nested tensor that shares ``values``; ``offsets`` ([components + 1]) delimits it.

    Component i is ``values[offsets[i]:offsets[i + 1]]``. Raises ArgumentError for offsets that are
    not ascending, and DeviceError for tensors on different devices. As
    ``torch.nested.nested_tensor_from_jagged``.
    """
    return new_tensor(NestedArray(_dense(values), _indices(offsets)), requires_grad=requires_grad)


def _made(name: str, parts: tuple[Any, ...], size: Any, requires_grad: bool) -> Tensor:
    try:
        facts = Facts(tuple(operator.index(extent) for extent in size))
    except TypeError as error:
        raise ArgumentError(f"size is {size!r}; expected integers") from error
    return new_tensor(checked_array(LAYOUTS[name], parts, facts), requires_grad=requires_grad)


def _dense(value: Any) -> Any:
    """Return a backend's array as is; convert numbers and lists to NumPy arrays."""
    if not isinstance(value, Tensor):
        if arrays.find_key_bits(value) is None and not arrays.is_foreign(value):
            try:
                value = np.asarray(value)
            except ValueError as error:
                raise ArgumentError(f"an argument is not an array ({error})") from error
        value = Tensor(value)
    value._require_dense("be a part of one")
    return value.array


def _indices(value: Any) -> Any:
    """Return indices as an array, of integers even for an empty list."""
    array = _dense(value)
    if array.dtype != np.float64 or 0 not in array.shape:
        return array
    device = arrays.device_of(array)
    return arrays.backend_of_device(device).from_host(np.empty(array.shape, np.int64), device)
