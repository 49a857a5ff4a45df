"""Base class of the sparse layouts: SciPy arrays on the host, CuPy arrays on a GPU.

Both libraries are optional. They are imported when an array is made; their arrays are recognized
by class name.
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
from opdispatch.arrays.layout import Facts, Layout, making, read_only_view
from opdispatch.arrays.size_limits import check_elements
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.keys.dispatch_key import BackendComponent

_COMPONENTS = {
    "scipy.sparse.": BackendComponent.CPU,
    "cupyx.scipy.sparse.": BackendComponent.CUDA,
}
# The dtype kinds that SciPy supports: neither float16 nor the dtypes of ml_dtypes.
_KINDS = "biufc"
_LEAST_FLOAT_BYTES = 4
_LARGEST_EXTENT = 2**63 - 1


class SparseLayout(Layout):
    """A sparse layout of the SciPy and CuPy classes named in ``class_names``."""

    class_names: ClassVar[frozenset[str]]
    pytorch_name: ClassVar[str]
    elements_name = "values"
    fact_names = ("shape",)

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is one of SciPy's or CuPy's classes, judged by name.

        Neither library needs to be installed.
        """
        return self.component_of(cls) is not None

    def component_of(self, cls: type) -> BackendComponent | None:
        """Return CPU for a SciPy class, CUDA for a CuPy class, None for any other."""
        for base in cls.__mro__:
            if base.__name__ in self.class_names:
                for package, component in _COMPONENTS.items():
                    if f"{base.__module__}.".startswith(package):
                        return component
        return None

    def check_arrays(self, parts: Sequence[Any]) -> None:
        """Check as ``Layout.check_arrays`` does, and that all parts are NumPy or CuPy arrays."""
        super().check_arrays(parts)
        sparse_module(parts[self.part_names.index(self.elements_name)])

    def elements(self, array: Any) -> Any:
        """Return the array of stored values, of shape [n]."""
        return array.data

    def facts(self, array: Any) -> Facts:
        """Return the shape. Raises ArgumentError if it no longer consists of integers."""
        try:
            return Facts(tuple(map(operator.index, array.shape)))
        except TypeError as error:
            raise ArgumentError(f"shape is {array.shape!r}; expected integers") from error

    def read_only(self, array: Any) -> Any:
        """Return a shallow copy over read-only views; CuPy arrays are returned as they are."""
        return self._over(array, read_only_view)

    def _over(self, array: Any, change: Callable[[Any], Any]) -> Any:
        """Return a shallow copy of a SciPy array with ``change`` applied to each component."""
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
        """Return the attributes of a SciPy array that hold its arrays, or tuples of arrays."""

    def to_dense(self, array: Any) -> Any:
        """Return the dense array; values at duplicate coordinates are summed.

        Raises ArgumentError if the dense shape exceeds the address space, DeviceMemoryError if
        memory is short.
        """
        with self.making(f"a dense array of shape {list(array.shape)}", array):
            check_elements(array.shape)
            return array.toarray()

    def making(self, what: str, array: Any) -> AbstractContextManager[None]:
        """Return ``layout.making(what, ...)`` for the device of ``array``."""
        return making(what, self.backend_of(array).device_of(array.data))


def sparse_module(array: Any) -> Any:
    """Return ``scipy.sparse`` for a NumPy array, ``cupyx.scipy.sparse`` for a CuPy array.

    Raises DeviceError for other arrays, or if the module is not installed.
    """
    backend = find_backend(type(array))
    component = backend.component if backend is not None else None
    if component is BackendComponent.CPU:
        name, package = "scipy.sparse", "scipy"
    elif component is BackendComponent.CUDA:
        name, package = "cupyx.scipy.sparse", "the cupy package that fits the machine's CUDA"
    else:
        raise DeviceError(
            f"sparse arrays are not supported on {device_of(array)!r}; expected 'cpu' or 'cuda'"
        )
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"this process has no {name} for sparse arrays ({error})", hint=f"install {package}"
        ) from error


def check_extents(shape: tuple[int, ...], expected: str, at: str, *, fits: bool) -> None:
    """Raise ArgumentError unless ``fits`` is true and each extent is from 0 to 2**63 - 1."""
    if not fits or min(shape) < 0:
        raise ArgumentError(f"{at}shape is {list(shape)}; expected {expected}, none negative")
    if max(shape) > _LARGEST_EXTENT:
        raise ArgumentError(f"{at}shape is {list(shape)}; no extent is more than 2**63 - 1")


def check_values(array: Any, name: str) -> None:
    """Raise ArgumentError unless sparse arrays support the dtype of ``array``."""
    dtype = np.dtype(array.dtype)
    is_small = dtype.kind == "f" and dtype.itemsize < _LEAST_FLOAT_BYTES
    if dtype.kind not in _KINDS or is_small:
        raise ArgumentError(
            f"{name} has dtype {dtype}; expected bool, integers, float32, float64, complex64 or "
            "complex128"
        )
