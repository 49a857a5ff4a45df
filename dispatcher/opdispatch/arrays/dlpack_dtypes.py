"""Host memory by DLPack, also of element types that NumPy's DLPack has not: bfloat16 and float8.

A capsule says what its elements are in a ``DLDataType`` (``dlpack.h``, of major version 1 and
before), and is not shared from when it is asked for until it is taken. In between, elements of
ml_dtypes are said to be unsigned integers of the same width, which NumPy takes, or those that NumPy
gives are said to be what they are.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from opdispatch.schema.scalar_type import find_dtype_of_name

HostArray: TypeAlias = "np.ndarray[Any, Any]"

_UNSIGNED = 1  # kDLUInt
# DLDataTypeCode, of elements that fill whole bytes.
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
    """DLManagedTensor, up to the element type of the DLTensor that it begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, as far."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _Unversioned),
    )


# Prototypes of our own: others may set the types of those that ctypes shares.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def view_by_dlpack(value: Any) -> HostArray:
    """Return NumPy's view of the host memory that ``value.__dlpack__`` gives.

    Raises whatever that raises, and BufferError or RuntimeError, as NumPy does, for what it cannot
    view.
    """
    with suppress(BufferError, RuntimeError):  # RuntimeError: NumPy has no such element type
        view: HostArray = np.from_dlpack(value)
        return view
    as_integers = _AsIntegers(value)
    view = np.from_dlpack(as_integers)
    return view if as_integers.dtype is None else view.view(as_integers.dtype)


def give_by_dlpack(array: HostArray, **options: Any) -> Any:
    """Return a capsule of an array's memory; ``options`` are those of ``__dlpack__``.

    Raises BufferError for elements that DLPack has no word for.
    """
    code = _CODES.get(array.dtype.name)
    if code is None:
        return array.__dlpack__(**options)
    capsule: Any = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _data_type_in(capsule).code = code
    return capsule


class _AsIntegers:
    """Another library's array, whose elements are said to be integers if NumPy has not the type.

    ``dtype`` is then what they are.
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
    """Return the place of the data type in a capsule.

    Raises BufferError if it is none, was used, or is of another kind.

    It is the capsule's memory: the caller keeps that alive.
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
    raise BufferError("a DLPack capsule that can be used, of version 1, was expected")
