"""Arrays of zeros that are not stored: PyTorch's zero tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch.arrays.backends import backend_of_device
from opdispatch.arrays.lazy_array import LazyArray
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key

ZERO_TENSOR = bits_of_key(DispatchKey.ZeroTensor)


class ZeroArray(LazyArray):
    """Zeros on a device, with the key ZeroTensor in addition to its backend's.

    Immutable. Raises DeviceError for a device without a backend, and TypeError for an invalid
    dtype.
    """

    __slots__ = ("_device", "dtype", "key_bits", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: str = "cpu") -> None:
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.key_bits = backend_of_device(device).key_bits | ZERO_TENSOR
        self._device = device

    @property
    def device(self) -> str:
        """The device of the zeros."""
        return self._device

    def materialized(self) -> Any:
        """Return a new dense array of zeros on the device."""
        zeros = np.zeros(self.shape, self.dtype)
        return backend_of_device(self._device).from_host(zeros, self._device)
