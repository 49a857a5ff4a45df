"""DLPack exchange of host arrays, including the dtypes NumPy's DLPack lacks: bfloat16 and float8.

A capsule has the element type in a ``DLDataType`` (``dlpack.h``, up to major version 1). Between
its creation and its consumption no other code uses it, so its type can be overwritten: on import,
the dtypes of ml_dtypes become unsigned integers of the same width, which NumPy accepts; on export,
NumPy's unsigned integers become the actual type.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from opdispatch.schema.scalar_type import find_dtype_of_name

HostArray: TypeAlias = "np.ndarray[Any, Any]"

_UNSIGNED = 1  # kDLUInt
# DLDataTypeCode of the dtypes whose elements fill whole bytes.
_CODES = {
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
_NAMES = {code: name for name, code in _CODES.items()}


class _DataType(ctypes.Structure):
    """DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Unversioned(ctypes.Structure):
    """The start of DLManagedTensor: its DLTensor, up to the element type."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, up to the element type of its DLTensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _Unversioned),
    )


# Own prototypes: any code may set the argument types of the functions that ctypes.pythonapi shares.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def view_by_dlpack(value: Any) -> HostArray:
    """Return a NumPy view of the host memory that ``value.__dlpack__`` exports.

    Propagates errors of ``__dlpack__``. Raises BufferError or RuntimeError, as NumPy does, for an
    array that it cannot view.
    """
    with suppress(BufferError, RuntimeError):  # RuntimeError: NumPy has no such element type
        view: HostArray = np.from_dlpack(value)
        return view
    as_integers = _AsIntegers(value)
    view = np.from_dlpack(as_integers)
    return view if as_integers.dtype is None else view.view(as_integers.dtype)


def give_by_dlpack(array: HostArray, **options: Any) -> Any:
    """Return a DLPack capsule over an array's memory; ``options`` are those of ``__dlpack__``.

    Raises BufferError for a dtype that DLPack does not have.
    """
    code = _CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule: Any = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _data_type_in(capsule).code = code
    return capsule


class _AsIntegers:
    """Wrapper of another library's array that exports dtypes NumPy lacks as unsigned integers.

    ``dtype`` is the actual dtype after such an export, else None.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self.dtype: np.dtype[Any] | None = None

    def __dlpack_device__(self) -> Any:
        return self._value.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._value.__dlpack__(**options)
        with suppress(BufferError):
            found = _data_type_in(capsule)
            dtype = find_dtype_of_name(_NAMES.get(found.code, ""))
            if dtype is not None and (found.bits, found.lanes) == (8 * dtype.itemsize, 1):
                self.dtype = dtype
                found.code = _UNSIGNED
        return capsule


def _data_type_in(capsule: Any) -> _DataType:
    """Return the DLDataType in a capsule's memory, which the caller must keep alive.

    Raises BufferError for anything but an unconsumed capsule of DLPack up to version 1.
    """
    found: _DataType
    if _is_valid(capsule, b"dltensor"):
        found = _Unversioned.from_address(_pointer_of(capsule, b"dltensor")).dtype
        return found
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major == 1:
            found = managed.dl_tensor.dtype
            return found
    raise BufferError("expected an unused DLPack capsule of version 1 or earlier")
