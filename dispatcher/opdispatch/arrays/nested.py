"""The nested layout: components of different lengths, concatenated. Key ``NestedTensorCPU``, ...

Components may differ in the first dimension only, as in PyTorch's layout ``torch.jagged``.
"""

from __future__ import annotations

import cmath
import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch.arrays.backends import backend_of_device, device_errors, device_of, find_backend
from opdispatch.arrays.devices import device_mismatch
from opdispatch.arrays.layout import (
    Facts,
    Layout,
    check_indices,
    check_starts,
    making,
    namespace_of,
    read_only_view,
)
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.arrays.size_limits import check_elements
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NestedArray:
    """Nested array whose component i is ``values[offsets[i] : offsets[i + 1]]``.

    ``values`` has at least one dimension. ``offsets``, of dtype int64 or int32 and shape
    [components + 1], ascends from 0 to the length of ``values``. Neither is copied. Raises
    ArgumentError for other offsets and for anything but dense arrays, and DeviceError if the two
    are on different devices.
    """

    values: Any
    offsets: Any

    def __post_init__(self) -> None:
        parts = self.values, self.offsets
        NESTED.check_arrays(parts)
        NESTED.check_parts(parts, Facts())
        NESTED.check_elements(parts, Facts())

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of components, None for their lengths, and the trailing extents."""
        return NESTED.shape_of((self.values, self.offsets), Facts())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        dtype: np.dtype[Any] = np.dtype(self.values.dtype)
        return dtype

    @property
    def key_bits(self) -> int:
        """The dispatch key word: NestedTensorCPU, NestedTensorCUDA, ..."""
        return NESTED.key_bits_of(self)

    def unbind(self) -> list[Any]:
        """Return the components as views.

        Raises DeviceError for arrays without a namespace of the array API, such as meta arrays.
        """
        namespace_of(self.values)
        places = _on_host(self.offsets).tolist()
        return [self.values[a:b] for a, b in itertools.pairwise(places)]

    def to_padded(self, padding: float) -> Any:
        """Return a dense array of shape [components, longest, ...], filled up with ``padding``.

        Raises ArgumentError unless the dtype can hold ``padding``, and DeviceMemoryError.
        """
        number = _number_of(padding, self.dtype)
        lengths = np.diff(_on_host(self.offsets))
        longest = int(lengths.max(initial=0))
        shape = (len(lengths), longest, *self.values.shape[1:])
        with making(f"a dense array of shape {list(shape)}", device_of(self.values)):
            check_elements(shape)
            dense = namespace_of(self.values).full(shape, number, dtype=self.values.dtype)
        for row, component in zip(dense, self.unbind(), strict=True):
            row[: component.shape[0]] = component
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise ArgumentError(
            "a nested array is not dense", hint="use unbind() or to_padded(padding)"
        )


class Nested(Layout):
    """``values`` of shape [n, ...], and ``offsets`` of shape [components + 1]."""

    name = "nested"
    pytorch_name = "jagged"
    functionality = DispatchKey.NestedTensor
    part_names = ("values", "offsets")
    elements_name = "values"
    fact_names = ()
    index_parts = frozenset({"offsets"})

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is NestedArray."""
        return issubclass(cls, NestedArray)

    def shape_of(self, parts: Sequence[Any], facts: Facts) -> tuple[int | None, ...]:
        """Return the number of components, None for their lengths, and the trailing extents."""
        values, offsets = parts
        return (offsets.shape[0] - 1, None, *values.shape[1:])

    def elements(self, array: Any) -> Any:
        """Return the values."""
        return array.values

    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return the values and the offsets as they are."""
        return array.values, array.offsets

    def facts(self, array: Any) -> Facts:
        """Return the default Facts: the parts suffice."""
        return Facts()

    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless values has a dimension, and offsets an entry and dtype int64
        or int32.
        """
        values, offsets = parts
        if not values.shape:
            raise ArgumentError(f"{at}values has no dimensions; expected at least one")
        check_indices(offsets, f"{at}offsets", (None,))
        if not offsets.shape[0]:
            raise ArgumentError(
                f"{at}offsets is empty; expected one entry more than there are components"
            )

    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless offsets ascend from 0 to the length of values.

        Offsets on ``meta`` have no elements to check, as in PyTorch.
        """
        values, offsets = parts
        if isinstance(values, MetaArray) and isinstance(offsets, MetaArray):
            return
        check_starts(_on_host(offsets), f"{at}offsets", int(values.shape[0]))

    def assemble(self, parts: Sequence[Any], facts: Facts) -> NestedArray:
        """Return a NestedArray over the parts."""
        return NestedArray(*parts)

    def read_only(self, array: Any) -> NestedArray:
        """Return a nested array over read-only views; one of another library as it is."""
        if not isinstance(array.values, np.ndarray):
            return array  # type: ignore[no-any-return]
        return NestedArray(read_only_view(array.values), read_only_view(array.offsets))


NESTED = Nested()


def nest(components: Sequence[Any]) -> NestedArray:
    """Return a nested array of copies of dense arrays of one dtype, device and trailing shape.

    Raises ArgumentError if dtypes or trailing shapes differ or there are no arrays, and DeviceError
    for arrays on two devices.
    """
    if not components:
        raise ArgumentError("a nested tensor cannot be made of no arrays; expected at least one")
    first = components[0]
    for place, component in enumerate(components):
        backend = find_backend(type(component))
        if backend is None or not component.shape:
            kind = type(component).__qualname__
            what = "has no dimensions" if backend is not None else f"is of type {kind}"
            raise ArgumentError(
                f"array {place} {what}; expected an array of at least one dimension"
            )
        if component.dtype != first.dtype or component.shape[1:] != first.shape[1:]:
            raise ArgumentError(
                f"array {place} has dtype {component.dtype} and shape {list(component.shape)}; "
                f"expected {first.dtype} and [any{''.join(f', {n}' for n in first.shape[1:])}], as "
                "array 0 has"
            )
        if device_of(component) != device_of(first):
            raise device_mismatch(
                "a nested tensor", device_of(first), device_of(component), parts="components"
            )
    with making("one array of all components", device_of(first)):
        values = namespace_of(first).concat(list(components))
    ends = np.cumsum([0, *(component.shape[0] for component in components)], dtype=np.int64)
    device = device_of(first)
    return NestedArray(values, backend_of_device(device).from_host(ends, device))


def _number_of(padding: Any, dtype: np.dtype[Any]) -> bool | int | float | complex:
    """Return the padding as a Python number that ``dtype`` can hold, up to rounding.

    Raises ArgumentError if it cannot.
    """
    number: bool | int | float | complex = padding
    if hasattr(padding, "item") and not getattr(padding, "shape", None):
        number = padding.item()
    if isinstance(number, bool | int | float | complex):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            if dtype.kind in "biu":
                return _integer_of(number, dtype)
            wanted = complex(number)
            if dtype.kind != "c":
                if isinstance(number, complex):
                    raise TypeError
                number = float(number)
            with np.errstate(over="ignore"):
                stored = complex(np.asarray(number).astype(dtype))
            if cmath.isfinite(stored) or not cmath.isfinite(wanted):
                return number
    raise ArgumentError(f"padding is {padding!r}; expected a number of {dtype}")


def _integer_of(number: Any, dtype: np.dtype[Any]) -> bool | int:
    """Return a number as an int, or a bool for bool. Raises ValueError if the dtype lacks it."""
    integer = int(number)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if integer != number or not low <= integer <= high:
        raise ValueError
    return bool(integer) if dtype.kind == "b" else integer


def _on_host(offsets: Any) -> Any:
    backend = find_backend(type(offsets))
    if backend is None:
        return offsets
    with device_errors(backend.device_of(offsets)):
        return backend.to_host(offsets)
