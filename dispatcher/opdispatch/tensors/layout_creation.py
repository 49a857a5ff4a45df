"""Tensors of other layouts than the dense one, made of dense ones: PyTorch's functions.

What they are made of is shared where it can be, and always checked, as PyTorch does with
``check_invariants=True``: a kernel need not fear an index that is out of range.
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
    """Return a tensor with ``values`` ([n]) at ``indices`` ([dimensions, n]), and 0 elsewhere.

    Values of one place count together. Without a ``size`` it is the least that has all places.
    Raises ArgumentError for indices, values and sizes that do not fit together, and DeviceError
    for tensors on two devices, and where there are no sparse arrays, for instance without SciPy.
    ``torch.sparse_coo_tensor``.
    """
    places, elements = _indices(indices), _dense(values)
    LAYOUTS["sparse_coo"].check_arrays((places, elements))
    if size is None:
        if len(places.shape) != 2 or not places.shape[1]:
            raise ArgumentError(
                f"indices of shape {list(places.shape)} say nothing of the size; expected "
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
    """Return a matrix by rows: row i has ``values`` ([n]) from ``crow_indices[i]`` to ``[i + 1]``.

    ``col_indices`` ([n]) are their columns. Without a ``size`` it is the least that has all
    columns. Raises as ``sparse_coo_tensor``. ``torch.sparse_csr_tensor``.
    """
    rows, columns, elements = _indices(crow_indices), _indices(col_indices), _dense(values)
    LAYOUTS["sparse_csr"].check_arrays((rows, columns, elements))
    if size is None:
        if len(rows.shape) != 1 or not rows.shape[0]:
            raise ArgumentError(f"crow_indices has shape {list(rows.shape)}; expected [rows + 1]")
        check_indices(columns, "col_indices", (None,))
        size = (rows.shape[0] - 1, int(columns.max()) + 1 if 0 not in columns.shape else 0)
    made = _made("sparse_csr", (rows, columns, elements), size, requires_grad)
    if made.ndim != 2:  # SciPy has vectors by rows, PyTorch has none
        raise ArgumentError(f"size is {list(made.shape)}; expected two dimensions")
    return made


def quantize_per_tensor(input: Any, scale: float, zero_point: int, dtype: DTypeLike) -> Tensor:
    """Quantize ``input / scale + zero_point`` to the nearest integers, half to even, or the limits.

    ``dtype`` is ``"quint8"``, ``"qint8"`` or ``"qint32"``, or NumPy's dtype of that size. Elements
    are those of PyTorch 2.13 on the CPU; ``input`` is converted to float32. Raises ArgumentError
    for another dtype, a scale that is not above 0, or a zero point that the dtype has not.
    ``torch.quantize_per_tensor``.
    """
    return new_tensor(quantize(_dense(input), scale, zero_point, dtype))


def nested_tensor(tensor_list: Sequence[Any], *, requires_grad: bool = False) -> Tensor:
    """Return a tensor of copies of arrays that differ in their first dimension only.

    Raises ArgumentError for an empty list, and for arrays that differ in more, and DeviceError for
    arrays on two devices.
    ``torch.nested.nested_tensor``.
    """
    try:
        listed = iter(tensor_list)  # of an array without dimensions, too, it is a TypeError
    except TypeError as error:
        raise ArgumentError(f"tensor_list is {tensor_list!r}; expected a list of arrays") from error
    components = [_dense(each) for each in listed]
    return new_tensor(nest(components), requires_grad=requires_grad)


def nested_tensor_from_jagged(values: Any, offsets: Any, *, requires_grad: bool = False) -> Tensor:
    """Return a nested tensor over ``values``, whose component i is ``values[offsets[i]:offsets[i +
    1]]``.

    Raises ArgumentError for offsets that are not in order, and DeviceError for tensors on two
    devices.
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
    """Return an array of some backend; numbers and lists become NumPy's."""
    if not isinstance(value, Tensor):
        if arrays.find_key_bits(value) is None and not arrays.is_foreign(value):
            try:
                value = np.asarray(value)
            except ValueError as error:
                raise ArgumentError(f"there is no array of it ({error})") from error
        value = Tensor(value)
    value._require_dense("be a part of one")
    return value.array


def _indices(value: Any) -> Any:
    """Return indices as an array; an empty list has integers, too."""
    array = _dense(value)
    if array.dtype != np.float64 or 0 not in array.shape:
        return array
    device = arrays.device_of(array)
    return arrays.backend_of_device(device).from_host(np.empty(array.shape, np.int64), device)
