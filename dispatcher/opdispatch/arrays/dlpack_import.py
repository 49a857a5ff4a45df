"""Import of other libraries' arrays, such as PyTorch's and JAX's, by DLPack."""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backends import backends
from opdispatch.arrays.tensor_types import describe_type
from opdispatch.errors import DeviceError


def is_foreign(value: object) -> bool:
    """Return whether the type of ``value`` supports DLPack.

    Only the type is inspected, since an array class itself also has these attributes.
    """
    return hasattr(type(value), "__dlpack_device__") and hasattr(type(value), "__dlpack__")


def adopt(value: Any) -> Any:
    """Return a plain array that shares the memory of another library's array and keeps it alive.

    Nothing is copied. The array's DLPack device determines the backend. Raises DeviceError if no
    backend supports that device, or if the array cannot be exported.
    """
    is_negative = getattr(value, "is_neg", None)
    if callable(is_negative) and is_negative() is True:  # PyTorch exports them without the bit
        raise DeviceError(
            f"{describe_type(value)} has the negative bit set, which DLPack cannot express",
            hint="call resolve_neg() first",
        )
    try:
        device_type, number = map(int, value.__dlpack_device__())
    except Exception as error:  # foreign code may raise any exception
        raise _refusal(value, error) from error
    for backend in backends():
        if device_type in backend.dlpack_device_types:
            try:
                return backend.adopt(value)
            except DeviceError:
                raise
            except Exception as error:
                raise _refusal(value, error) from error
    raise DeviceError(
        f"{describe_type(value)} is on DLPack device {device_type}:{number}, which no backend "
        "of this process supports",
        hint="move it to the host first",
    )


def _refusal(value: Any, error: Exception) -> DeviceError:
    text = f"{describe_type(value)} cannot be imported by __dlpack__"
    if "PyCapsule" in str(error):  # a consumed capsule is renamed
        return DeviceError(
            f"{text}: it returned no DLPack capsule, or one that was used already",
            hint="a capsule can be used only once; __dlpack__ must return a new one",
        )
    return DeviceError(f"{text} ({type(error).__name__}: {error})")
