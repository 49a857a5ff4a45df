"""Arrays without elements: a shape and a dtype, key ``Meta``, for kernels that compute these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from opdispatch.arrays.backend import ArrayBackend, HostArray
from opdispatch.dispatch_key import BackendComponent
from opdispatch.errors import ArgumentError, DeviceError


class MetaArray:
    """What an array would be: a plain array of PyTorch's device ``meta``.

    A call with one among its tensors goes to the operator's kernel for ``Meta``.
    """

    __slots__ = ("__weakref__", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raises ArgumentError for a negative extent, and TypeError for what is no dtype."""
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"shape is {list(shape)}; a dimension is never negative")
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements it would have."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they would have."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"MetaArray({list(self.shape)}, {self.dtype})"


class MetaBackend(ArrayBackend):
    """``MetaArray``. No machine has such a device, and nothing comes back from it."""

    device_type = "meta"
    component = BackendComponent.Meta

    def owns(self, cls: type) -> bool:
        """Whether it is MetaArray, or derived from it."""
        return issubclass(cls, MetaArray)

    def device_of(self, array: Any) -> str:
        """Always ``"meta"``."""
        return "meta"

    def device_count(self) -> int:
        """0."""
        return 0

    def to_host(self, array: Any) -> HostArray:
        """Raises DeviceError."""
        raise DeviceError(f"there are no elements in {array!r} to be copied out of it")

    def from_host(self, array: HostArray, device: str) -> MetaArray:
        """Its shape and its dtype."""
        return MetaArray(array.shape, array.dtype)

    def copy(self, array: Any) -> MetaArray:
        """Another one."""
        return MetaArray(array.shape, array.dtype)

    def assign(self, target: Any, contents: Any) -> None:
        """Nothing is written anywhere."""
