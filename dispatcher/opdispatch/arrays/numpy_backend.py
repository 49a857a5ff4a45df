"""The backend of NumPy's arrays: host memory, key ``CPU``."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from opdispatch.arrays.backend import ArrayBackend, HostArray
from opdispatch.arrays.dlpack_dtypes import view_by_dlpack
from opdispatch.errors import DeviceMemoryError
from opdispatch.keys.dispatch_key import BackendComponent

# dlpack.h: kDLCPU, and host memory that a GPU can reach (kDLCUDAHost, kDLROCMHost).
_HOST_MEMORY = (1, 3, 11)


class NumpyBackend(ArrayBackend):
    """Backend of ``numpy.ndarray`` and its subclasses, and of NumPy scalars as 0-d tensors."""

    device_type = "cpu"
    component = BackendComponent.CPU
    dlpack_device_types = _HOST_MEMORY

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is a class of NumPy arrays or scalars, judged by name."""
        # isinstance would import NumPy, which a daemon defers.
        return any(
            each.__module__ == "numpy" and each.__name__ in ("ndarray", "generic")
            for each in cls.__mro__
        )

    def device_of(self, array: Any) -> str:
        """Return ``"cpu"``."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1."""
        return 1

    def to_host(self, array: Any) -> HostArray:
        """Return the array itself."""
        return np.asarray(array)

    def from_host(self, array: HostArray, device: str) -> HostArray:
        """Return a copy in the same memory order. Raises DeviceMemoryError."""
        return _copy(array, "K")

    def is_its_own(self, array: Any) -> bool:
        """Return whether it is a plain, C-contiguous, writable array that is not a view."""
        flags = array.flags
        is_plain = type(array) is np.ndarray and array.base is None
        return bool(is_plain and flags.c_contiguous and flags.writeable)

    def copy(self, array: Any) -> HostArray:
        """Return a C-contiguous copy. Raises DeviceMemoryError."""
        return _copy(array, "C")

    def explain(self, error: BaseException) -> DeviceMemoryError | None:
        """Return a DeviceMemoryError for a MemoryError of Python or NumPy; None for other errors.

        Another library's MemoryError may concern its own device.
        """
        module = type(error).__module__.partition(".")[0]
        if not isinstance(error, MemoryError) or module not in ("builtins", "numpy"):
            return None
        facts = {"device": "cpu"}
        match error.args:
            case (tuple() as shape, np.dtype() as dtype):  # NumPy's MemoryError
                facts["asked"] = str(math.prod(shape) * dtype.itemsize)
        why = f" ({error})" if str(error) else ""
        return DeviceMemoryError(f"there is no room on 'cpu'{why}", **facts)

    def assign(self, target: HostArray, contents: Any) -> None:
        """Write in place; dtypes of the same kind are converted."""
        np.copyto(target, contents, casting="same_kind")

    def adopt(self, value: Any) -> HostArray:
        """Return a view, writable where the other library allows it."""
        return view_by_dlpack(value)


def _copy(array: Any, order: Literal["C", "K"]) -> HostArray:
    try:
        return np.array(array, order=order)
    except MemoryError as error:
        raise DeviceMemoryError(
            f"there is no room for an array of {array.nbytes} bytes on 'cpu'",
            asked=str(array.nbytes),
        ) from error
