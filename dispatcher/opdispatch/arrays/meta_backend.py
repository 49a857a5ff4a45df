"""Arrays that have only a shape and a dtype: key ``Meta``, for kernels that infer result shapes."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from opdispatch.arrays.backend import ArrayBackend, HostArray
from opdispatch.errors import ArgumentError, DataDependentOutputError, DeviceError
from opdispatch.keys.dispatch_key import BackendComponent

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

MOST_DIMENSIONS = 64
"""Most dimensions of an array, in NumPy and in PyTorch."""


class MetaArray:
    """Array without elements: shape and dtype on PyTorch's device ``meta``.

    A call with one among its tensors goes to the operator's kernel for ``Meta``.
    """

    __slots__ = ("__weakref__", "dtype", "shape")

    device = "meta"

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raise ArgumentError for an invalid shape, and TypeError for an invalid dtype."""
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"shape is {list(shape)}; a dimension is never negative")
        if any(extent > sys.maxsize for extent in shape):
            raise ArgumentError(f"shape is {list(shape)}; a dimension has at most {sys.maxsize}")
        if len(shape) > MOST_DIMENSIONS:
            raise ArgumentError(
                f"the shape has {len(shape)} dimensions; an array has at most {MOST_DIMENSIONS}"
            )
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements that the shape implies."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes that the shape and the dtype imply."""
        return self.size * self.dtype.itemsize

    def like(self) -> MetaArray:
        """Return a new array of the same shape and dtype."""
        return MetaArray(self.shape, self.dtype)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise DataDependentOutputError(
            f"{self!r} on {self.device!r} has no elements to read",
            hint="a meta or fake tensor has only a shape and a dtype",
        )

    __array__ = __bool__ = __complex__ = __float__ = __index__ = __int__ = _refuse
    item = tolist = _refuse

    def __repr__(self) -> str:
        return f"MetaArray({list(self.shape)}, {self.dtype})"


class MetaBackend(ArrayBackend):
    """Backend of ``MetaArray``. Its device has no memory, so nothing can be read from it."""

    device_type = "meta"
    component = BackendComponent.Meta

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is MetaArray or a subclass."""
        return issubclass(cls, MetaArray)

    def device_of(self, array: Any) -> str:
        """Return ``"meta"``, or the device that a fake array pretends to be on."""
        device: str = array.device
        return device

    def device_count(self) -> int:
        """Return 0: no machine has such a device."""
        return 0

    def to_host(self, array: Any) -> HostArray:
        """Raise DeviceError: there are no elements to copy."""
        raise DeviceError(f"{array!r} has no elements to copy to the host")

    def from_host(self, array: HostArray, device: str) -> MetaArray:
        """Return an array without elements, of the same shape and dtype."""
        return MetaArray(array.shape, array.dtype)

    def copy(self, array: Any) -> MetaArray:
        """Return a new array of the same shape and dtype."""
        copy: MetaArray = array.like()
        return copy

    def assign(self, target: Any, contents: Any) -> None:
        """Do nothing: there are no elements to write."""
