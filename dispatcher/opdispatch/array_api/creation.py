"""Arrays out of other objects."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch import arrays
from opdispatch.array_api.data_types import DTYPES
from opdispatch.array_api.operators import OPERATORS
from opdispatch.array_operators.dtypes import DOUBTFUL_KINDS, check_numbers
from opdispatch.errors import ArgumentError
from opdispatch.tensor import Tensor


def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor of an array, a scalar or nested sequences of these.

    ``copy`` is whether the elements are copied: always, never, or if need be. Raises ArgumentError
    for objects that are no numbers, ValueError if they had to be copied and must not be, and
    DeviceError.
    """
    if isinstance(obj, Tensor) or arrays.find_key_bits(obj) is not None or arrays.is_foreign(obj):
        return _of_array(obj if isinstance(obj, Tensor) else Tensor(obj), dtype, device, copy)
    if copy is False and not hasattr(obj, "__array_interface__"):
        raise ValueError(f"asarray must copy the elements of a {type(obj).__name__}")
    array = np.asarray(_plain(obj), dtype=dtype, copy=copy)
    if array.dtype.kind in DOUBTFUL_KINDS:
        check_numbers("asarray", array.dtype)
    tensor = Tensor(array)
    return tensor if device is None else tensor.to(device)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor over another library's array, or of a copy of it. Raises BufferError, ValueError."""
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            f"from_dlpack takes what has __dlpack__, and {type(x).__name__} has not"
        )
    tensor = x if isinstance(x, Tensor) else Tensor(arrays.adopt(x))
    return _of_array(Tensor(tensor.array), None, device, copy)


def _of_array(tensor: Tensor, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    if tensor.dtype.kind in DOUBTFUL_KINDS:
        check_numbers("asarray", tensor.dtype)
    moved = tensor if device is None else tensor.to(device)
    wanted = moved.dtype if dtype is None else DTYPES.get(dtype, np.dtype(dtype))
    is_new = moved is not tensor
    if copy is False and (is_new or wanted != moved.dtype):
        raise ValueError("asarray must copy the elements: the device or the type is another one")
    if wanted != moved.dtype:
        result: Tensor = OPERATORS.astype.default(moved, wanted)
        return result
    if copy and not is_new:
        backend = arrays.find_backend(type(moved.array))
        assert backend is not None, "a tensor's array is one of a backend"
        return Tensor(backend.copy(moved.array))
    return moved


def _plain(value: Any) -> Any:
    """Tensors in nested sequences as their arrays."""
    if isinstance(value, Tensor):
        return value.array
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
