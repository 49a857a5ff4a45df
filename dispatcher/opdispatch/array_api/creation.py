"""``asarray`` and ``from_dlpack``: conversion of other objects to tensors."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np

from opdispatch import arrays
from opdispatch.array_api.data_types import DTYPES
from opdispatch.array_api.operators import OPERATORS
from opdispatch.arrays.level_array import LevelArray
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.functorch.dynamic_layer import next_level
from opdispatch.local_state.tracing_state import is_tracing, note_reading
from opdispatch.native.array.operators.type_promotion import (
    DOUBTFUL_KINDS,
    check_complex,
    check_numbers,
    find_out_of_range,
)
from opdispatch.tensors.exchange import refuse_recorded
from opdispatch.tensors.operators import TensorOperators
from opdispatch.tensors.tensor import Tensor, new_tensor

_NUMBERS = frozenset((bool, int, float, complex))
_OF_PYTHON = _NUMBERS | {list, tuple}
_T = TypeVar("_T", bound=TensorOperators)


@overload
def asarray(
    obj: _T, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> _T: ...
@overload
def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Tensor: ...
# Library-independent code reads this return annotation for the array class, so it is not `Any`.
def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> TensorOperators:
    """Convert an array, a scalar or a nested sequence of them to a ``Tensor``.

    A session's remote tensor remains remote. ``copy`` is True to always copy the elements, False to
    never copy them, and None to copy them only if necessary. Raises ArgumentError for elements that
    are not numbers, ValueError if ``copy`` is False and a copy is necessary, and DeviceError.
    """
    if isinstance(obj, TensorOperators) and not isinstance(obj, Tensor):
        remote: TensorOperators = _of_remote(obj, dtype, device, copy)
        return remote
    if type(obj) not in _OF_PYTHON and (
        isinstance(obj, Tensor) or arrays.find_key_bits(obj) is not None or arrays.is_foreign(obj)
    ):
        return _of_array(obj if isinstance(obj, Tensor) else new_tensor(obj), dtype, device, copy)
    values, wanted = _plain(obj), None if dtype is None else _dtype_of(dtype)
    if wanted is not None:
        found = np.asarray(values)
        if found.dtype.kind == "c":
            check_complex("asarray", found.dtype, wanted)
        if found.dtype.kind == "O" and None in found.ravel().tolist():  # NumPy converts None to NaN
            check_numbers("asarray", found.dtype)
    try:
        array = np.asarray(values, dtype=wanted, copy=copy)
    except ValueError as error:
        if copy is False:
            text = f"asarray must copy the elements of an object of type {type(obj).__name__}"
            raise ValueError(text) from error
        raise
    except OverflowError as error:
        numbers = np.asarray(values, dtype=object).ravel().tolist()
        assert wanted is not None, "without a type, it is one that has them, or of objects"
        raise find_out_of_range("asarray", numbers, wanted) or error from None
    return _of_array(new_tensor(array), None, device, None if copy else copy)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Return a tensor that shares the memory of another library's array, or has a copy of it.

    Raises ArgumentError if ``x`` does not support DLPack, BufferError if it cannot export its
    elements, ValueError if ``copy`` is False and a copy is necessary, and DeviceError.
    """
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            f"from_dlpack requires an object with __dlpack__, not {type(x).__name__}"
        )
    if isinstance(x, Tensor):
        refuse_recorded(x)
    elif copy is False and isinstance(x, TensorOperators):
        raise BufferError("the elements of a remote tensor are in another process: copy them")
    try:
        array = x.array if isinstance(x, Tensor) else arrays.adopt(x)
    except DeviceError as error:
        if isinstance(error.__cause__, BufferError):
            raise BufferError(str(error)) from error
        raise
    return _of_array(new_tensor(array), None, device, copy)


def _of_array(tensor: Tensor, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    if tensor.dtype.kind in DOUBTFUL_KINDS:
        check_numbers("asarray", tensor.dtype)
    moved = tensor if device is None else tensor.to(device)
    wanted = _wanted(moved.dtype, dtype)
    is_new = moved is not tensor
    if copy is False and (is_new or wanted != moved.dtype):
        raise ValueError("the elements must be copied, since the device or the dtype differs")
    if wanted != moved.dtype:
        result: Tensor = OPERATORS.astype.default(moved, wanted)
        return result
    if copy and not is_new:
        if moved.requires_grad:
            copied: Tensor = OPERATORS.positive.default(moved)
            return copied
        # In a traced or transformed function, this also applies to tensors from outside of it.
        if is_tracing() or next_level() > 1 or isinstance(moved.array, LevelArray):
            same: Tensor = OPERATORS.astype.default(moved, moved.dtype)
            return same
        return Tensor(arrays.copy_of(moved.array))
    return moved


def _wanted(given: np.dtype[Any], dtype: Any) -> np.dtype[Any]:
    """Return the requested dtype; by default, the array's own in native byte order."""
    if dtype is None:
        return given if given.isnative else given.newbyteorder("=")
    return _dtype_of(dtype)


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = DTYPES.get(dtype) or np.dtype(dtype)
    except TypeError as error:  # also for unhashable values
        raise ArgumentError(f"asarray takes an element type or its name, not {dtype!r}") from error
    return found if found.isnative else found.newbyteorder("=")


def _of_remote(tensor: Any, dtype: Any, device: str | None, copy: bool | None) -> Any:
    """Convert a remote tensor, whose elements stay in the other process."""
    moved = tensor if device is None else tensor.to_device(device)
    wanted = _wanted(moved.dtype, dtype)
    is_new = moved is not tensor
    if copy is False and (is_new or wanted != moved.dtype):
        raise ValueError("asarray must copy the elements, since the device or the dtype differs")
    if wanted == moved.dtype and (is_new or not copy):
        return moved
    return OPERATORS.astype.default(moved, wanted)


def _plain(value: Any) -> Any:
    """Replace the tensors in nested sequences by their arrays."""
    if isinstance(value, Tensor):
        note_reading(value, "a tensor in a list given to asarray")
        return value.array
    if isinstance(value, str | bytes):  # NumPy parses numbers from strings
        check_numbers("asarray", np.asarray(value).dtype)
    if isinstance(value, list | tuple):
        # NumPy converts a million numbers in 20 ms; inspecting each one would take 400 ms.
        return value if _NUMBERS.issuperset(map(type, value)) else [_plain(each) for each in value]
    return value
