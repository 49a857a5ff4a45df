"""Interface of a layout: a tensor stored as several dense arrays.

    parts(array), facts(array)  <-  array       its dense arrays, and the metadata
    assemble(parts, facts)      ->  array

A tensor that is not dense is sent, copied and stored as its parts. Code that receives parts must
check them: ``check_parts`` reads only shapes and dtypes, so it also works without the elements, and
``check_elements`` reads the indices, since kernels do not check bounds. A sender takes an array
apart with ``checked_parts``, since its parts may have been replaced after construction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import device_errors, find_backend
from opdispatch.arrays.devices import COMPONENTS, device_mismatch
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import bits_of_key


class Facts(NamedTuple):
    """Metadata that rebuilds an array from its parts; a layout uses the fields it needs."""

    shape: tuple[int, ...] = ()
    scale: float = 1.0
    zero_point: int = 0


class Layout(ABC):
    """One layout. Thread-safe."""

    name: ClassVar[str]
    """``"sparse_coo"``, ``"sparse_csr"``, ``"quantized"`` or ``"nested"``."""
    pytorch_name: ClassVar[str]
    """The ``torch.Tensor.layout`` of such a tensor, without ``torch.``"""
    functionality: ClassVar[DispatchKey]
    """The key that replaces Dense in such a tensor's keys."""
    part_names: ClassVar[tuple[str, ...]]
    """Names of the parts in order, after the methods of ``torch.Tensor`` that return them."""
    elements_name: ClassVar[str]
    """The part that has the dtype and the device of the whole array."""
    fact_names: ClassVar[tuple[str, ...]]
    """The fields of ``Facts`` that the layout uses."""
    index_parts: ClassVar[frozenset[str]] = frozenset()
    """The parts that hold indices or offsets into others. They must not change once checked."""

    def key_bits(self, component: BackendComponent) -> int:
        """Return the dispatch key word of an array of this layout on a backend."""
        return bits_of_key(to_runtime_key(self.functionality, component))

    @abstractmethod
    def owns(self, cls: type) -> bool:
        """Return whether instances of ``cls`` have this layout, without importing anything."""

    def component_of(self, cls: type) -> BackendComponent | None:
        """Return the backend of all instances of ``cls``; None if it depends on the instance."""
        return None

    def shape_of(self, parts: Sequence[Any], facts: Facts) -> tuple[int | None, ...]:
        """Return the shape of the whole array."""
        return facts.shape

    @abstractmethod
    def elements(self, array: Any) -> Any:
        """Return the part ``elements_name`` without a copy."""

    @abstractmethod
    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return the dense arrays in the order of ``part_names``."""

    @abstractmethod
    def facts(self, array: Any) -> Facts:
        """Return the metadata of an array."""

    @abstractmethod
    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless shapes and dtypes of the parts fit the facts.

        The message puts ``at`` before the name of the offending part.
        """

    @abstractmethod
    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless the elements of ``index_parts`` are in range."""

    def check_arrays(self, parts: Sequence[Any]) -> None:
        """Raise ArgumentError unless each part is an array of a registered backend.

        Raises DeviceError unless all parts are on one device, and one that supports the layout.
        """
        devices = []
        for name, part in zip(self.part_names, parts, strict=True):
            backend = find_backend(type(part))
            if backend is None:
                raise _no_array(name, part)
            devices.append(backend.device_of(part))
        for device in devices[1:]:
            if device != devices[0]:
                raise device_mismatch(f"a {self.name} tensor", devices[0], device, parts="parts")

    def checked_parts(self, array: Any) -> tuple[tuple[Any, ...], Facts]:
        """Return the parts and the facts of an array, checked anew.

        Raises ArgumentError if they no longer fit together, and DeviceError as ``check_arrays``.
        """
        parts, facts = self.parts(array), self.facts(array)
        self.check_arrays(parts)
        self.check_parts(parts, facts)
        self.check_elements(parts, facts)
        return parts, facts

    @abstractmethod
    def assemble(self, parts: Sequence[Any], facts: Facts) -> Any:
        """Return an array over the parts, which are copied only where unavoidable.

        Raises ArgumentError if the array library rejects the parts, and DeviceError.
        """

    @abstractmethod
    def read_only(self, array: Any) -> Any:
        """Return a view over read-only NumPy arrays; arrays of other libraries as they are."""

    def to_dense(self, array: Any) -> Any:
        """Return an array converted to dense. Raises ArgumentError if the layout cannot be."""
        raise ArgumentError(f"a {self.name} array is not dense")

    def backend_of(self, array: Any) -> ArrayBackend:
        """Return the backend of the array's parts.

        Raises ArgumentError if the elements are no longer an array of a backend.
        """
        elements = self.elements(array)
        backend = find_backend(type(elements))
        if backend is None:
            raise _no_array(self.elements_name, elements)
        return backend

    def key_bits_of(self, array: Any) -> int:
        """Return the dispatch key word of an array of this layout."""
        return self.key_bits(COMPONENTS[self.backend_of(array).device_type])

    def nbytes(self, array: Any) -> int:
        """Return the size in bytes of all parts, computed from shapes and dtypes.

        Raises ArgumentError if a part is no longer an array of a backend.
        """
        parts = self.parts(array)
        self.check_arrays(parts)
        return sum(math.prod(part.shape) * np.dtype(part.dtype).itemsize for part in parts)


def _no_array(name: str, part: Any) -> ArgumentError:
    return ArgumentError(f"{name} is of type {type(part).__qualname__}; expected a dense array")


def namespace_of(array: Any) -> Any:
    """Return an array's namespace of the array API standard. Raises DeviceError if it has none."""
    import array_api_compat  # here: the import is slow, and few processes need it

    try:
        return array_api_compat.array_namespace(array)
    except TypeError as error:
        raise DeviceError(
            f"arrays of type {type(array).__qualname__} have no namespace of the array API",
            hint="move the tensor to the host",
        ) from error


@contextmanager
def making(what: str, device: str) -> Iterator[None]:
    """Convert ValueError and TypeError raised in the block to ArgumentError.

    The message says that ``what`` cannot be made. Any other error of the array library becomes
    DeviceError, or DeviceMemoryError if memory is short.
    """
    with device_errors(device):
        try:
            yield
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{what} cannot be made ({error})") from error


def read_only_view(array: Any) -> Any:
    """Return a read-only view of a NumPy array; any other value as it is."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def check_indices(array: Any, name: str, shape: tuple[int | None, ...]) -> None:
    """Raise ArgumentError unless the array has dtype int32 or int64 and fits ``shape``.

    None in ``shape`` matches any extent.
    """
    if array.dtype not in (np.int32, np.int64):
        raise ArgumentError(f"{name} has dtype {array.dtype}; expected int64 or int32")
    check_shape(array, name, shape)


def check_shape(array: Any, name: str, shape: tuple[int | None, ...]) -> None:
    """Raise ArgumentError unless the array's shape fits ``shape``; None matches any extent."""
    have = tuple(array.shape)
    fits = len(have) == len(shape) and all(
        extent in (wanted, None) or wanted is None
        for extent, wanted in zip(have, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ArgumentError(f"{name} has shape {list(have)}; expected [{wanted}]")


def check_range(array: Any, name: str, extent: int) -> None:
    """Raise ArgumentError unless all elements are from 0 to ``extent - 1``."""
    if not array.size:
        return
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= extent:
        wrong = low if low < 0 else high
        raise ArgumentError(f"{name} has index {wrong}, out of range for an extent of {extent}")


def check_starts(array: Any, name: str, end: int) -> None:
    """Raise ArgumentError unless elements start with 0, never decrease, and end with ``end``."""
    first, last = int(array[0]), int(array[-1])
    if first != 0 or last != end:
        which, wrong, right = ("begins", first, 0) if first else ("ends", last, end)
        raise ArgumentError(f"{name} {which} with {wrong}; expected {right}")
    falls = array[1:] < array[:-1]
    if bool(falls.any()):
        place = int(falls.argmax()) + 1
        raise ArgumentError(
            f"{name} decreases from {int(array[place - 1])} to {int(array[place])} at index "
            f"{place}; expected ascending offsets"
        )
