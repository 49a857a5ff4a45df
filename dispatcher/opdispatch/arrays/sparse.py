"""Common parts of the sparse layouts: arrays of SciPy on the host, of CuPy on a GPU.

Both libraries are optional, and imported when an array is made. Their arrays are recognized by
class name.
"""

from __future__ import annotations

import copy
import importlib
import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from opdispatch.arrays.backends import device_of, find_backend
from opdispatch.arrays.extents import check_elements
from opdispatch.arrays.layout import Facts, Layout, making, read_only_view
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.keys.dispatch_key import BackendComponent

_COMPONENTS = {
    "scipy.sparse.": BackendComponent.CPU,
    "cupyx.scipy.sparse.": BackendComponent.CUDA,
}
# What SciPy computes with: no float16, and none of ml_dtypes.
_KINDS = "biufc"
_LEAST_FLOAT_BYTES = 4
_LARGEST_EXTENT = 2**63 - 1


class SparseLayout(Layout):
    """A sparse layout, whose classes have one of ``class_names``."""

    class_names: ClassVar[frozenset[str]]
    pytorch_name: ClassVar[str]
    elements_name = "values"
    fact_names = ("shape",)

    def owns(self, cls: type) -> bool:
        """Return whether it is a class of SciPy or CuPy, by its name.

        They need not be installed.
        """
        return self.component_of(cls) is not None

    def component_of(self, cls: type) -> BackendComponent | None:
        """Return CPU for SciPy's arrays, CUDA for CuPy's."""
        for base in cls.__mro__:
            if base.__name__ in self.class_names:
                for package, component in _COMPONENTS.items():
                    if f"{base.__module__}.".startswith(package):
                        return component
        return None

    def check_arrays(self, parts: Sequence[Any]) -> None:
        """See ``Layout.check_arrays``: they are NumPy's, or CuPy's."""
        super().check_arrays(parts)
        sparse_module(parts[self.part_names.index(self.elements_name)])

    def elements(self, array: Any) -> Any:
        """Return the values."""
        return array.data

    def facts(self, array: Any) -> Facts:
        """Return the shape. Raises ArgumentError if it is no longer a valid shape."""
        try:
            return Facts(tuple(map(operator.index, array.shape)))
        except TypeError as error:
            raise ArgumentError(f"shape is {array.shape!r}; expected integers") from error

    def read_only(self, array: Any) -> Any:
        """Return a shallow copy over views."""
        return self._over(array, read_only_view)

    def _over(self, array: Any, change: Callable[[Any], Any]) -> Any:
        """Return a copy whose own arrays are those of ``array``, each passed through ``change``."""
        if self.component_of(type(array)) is not BackendComponent.CPU:
            return array
        other = copy.copy(array)
        for name in self._own_arrays():
            value = getattr(array, name)
            changed = tuple(map(change, value)) if isinstance(value, tuple) else change(value)
            setattr(other, name, changed)
        return other

    @abstractmethod
    def _own_arrays(self) -> tuple[str, ...]:
        """Return the attributes of SciPy's arrays that are arrays, or tuples of them."""

    def to_dense(self, array: Any) -> Any:
        """Return the dense array; values at duplicate coordinates are summed.

        Raises ArgumentError for a shape that no memory has, and DeviceMemoryError.
        """
        with self.making(f"a dense array of shape {list(array.shape)}", array):
            check_elements(array.shape)
            return array.toarray()

    def making(self, what: str, array: Any) -> AbstractContextManager[None]:
        """Return ``layout.making`` for a value made of such an array. Raises ArgumentError."""
        return making(what, self.backend_of(array).device_of(array.data))


def sparse_module(array: Any) -> Any:
    """Return ``scipy.sparse`` or ``cupyx.scipy.sparse``, for dense arrays of that kind.

    Raises DeviceError where there is none.
    """
    backend = find_backend(type(array))
    component = backend.component if backend is not None else None
    if component is BackendComponent.CPU:
        name, package = "scipy.sparse", "scipy"
    elif component is BackendComponent.CUDA:
        name, package = "cupyx.scipy.sparse", "the cupy package that fits the machine's CUDA"
    else:
        raise DeviceError(
            f"there are no sparse arrays on {device_of(array)!r}; they are on 'cpu' or 'cuda'"
        )
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"this process has no {name} for sparse arrays ({error})", hint=f"install {package}"
        ) from error


def check_extents(shape: tuple[int, ...], expected: str, at: str, *, fits: bool) -> None:
    """Raise ArgumentError unless it ``fits`` and each extent is an int64 of at least 0."""
    if not fits or min(shape) < 0:
        raise ArgumentError(f"{at}shape is {list(shape)}; expected {expected}, none negative")
    if max(shape) > _LARGEST_EXTENT:
        raise ArgumentError(f"{at}shape is {list(shape)}; no extent is more than 2**63 - 1")


def check_values(array: Any, name: str) -> None:
    """Raise ArgumentError unless sparse arrays can have elements of that dtype."""
    dtype = np.dtype(array.dtype)
    is_small = dtype.kind == "f" and dtype.itemsize < _LEAST_FLOAT_BYTES
    if dtype.kind not in _KINDS or is_small:
        raise ArgumentError(
            f"{name} has dtype {dtype}; expected bool, integers, float32, float64, complex64 or "
            "complex128"
        )
