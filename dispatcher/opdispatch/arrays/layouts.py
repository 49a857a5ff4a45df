"""The registry of layouts, and functions for arrays of any layout."""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backends import backend_of_device, device_errors, find_backend
from opdispatch.arrays.layout import Facts, Layout
from opdispatch.arrays.lazy_array import LazyArray, materialized
from opdispatch.arrays.level_array import LevelArray
from opdispatch.arrays.math_bits import stored
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.arrays.nested import NESTED
from opdispatch.arrays.quantized import QUANTIZED
from opdispatch.arrays.sparse_coo import SparseCoo
from opdispatch.arrays.sparse_csr import SparseCsr
from opdispatch.errors import TransformError

SPARSE_COO, SPARSE_CSR = SparseCoo(), SparseCsr()
LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (SPARSE_COO, SPARSE_CSR, QUANTIZED, NESTED)
}
"""Layouts by name."""

__all__ = [
    "LAYOUTS",
    "NESTED",
    "QUANTIZED",
    "SPARSE_COO",
    "SPARSE_CSR",
    "checked_array",
    "copy_of",
    "device_of",
    "elements_of",
    "find_layout",
    "on_device",
    "on_host",
]

# A cache by class. Kernel libraries do not define such classes, so no entry goes stale when one is
# unloaded. Entries are only added, each by one atomic store, so it is read without a lock.
_layout_of_class: dict[type, Layout] = {}


def find_layout(cls: type) -> Layout | None:
    """Return the layout of arrays of class ``cls``; None for dense arrays and other values."""
    if cls.__module__ in ("numpy", "builtins"):
        return None
    layout = _layout_of_class.get(cls)
    if layout is None:
        layout = next((each for each in LAYOUTS.values() if each.owns(cls)), None)
        if layout is not None:
            _layout_of_class[cls] = layout
    return layout


def checked_array(layout: Layout, parts: tuple[Any, ...], facts: Facts, at: str = "") -> Any:
    """Assemble an array from its component arrays.

    Raises ArgumentError for inconsistent parts, DeviceError for parts on two devices.
    """
    layout.check_arrays(parts)
    layout.check_parts(parts, facts, at)
    layout.check_elements(parts, facts, at)
    return layout.assemble(parts, facts)


def elements_of(array: Any) -> Any:
    """Return the dense array that determines an array's device: itself if it is dense."""
    layout = find_layout(type(array))
    return stored(array) if layout is None else layout.elements(array)


def device_of(array: Any) -> str:
    """Return the device of an array of any backend and layout.

    Raises TypeError for any other value.
    """
    if isinstance(array, LevelArray):
        return array.device
    backend = find_backend(type(array))
    if backend is not None:
        return backend.device_of(array)
    if isinstance(array, LazyArray):
        return array.device
    layout = find_layout(type(array))
    if layout is None:
        raise TypeError(f"no backend has arrays of type {type(array).__qualname__}")
    elements = layout.elements(array)
    return layout.backend_of(array).device_of(elements)


def on_device(array: Any, device: str) -> Any:
    """Return a copy on ``device`` of an array of any backend and layout.

    Raises DeviceError if there is no such device, if it does not support the layout, or if the
    parts are on two devices; DeviceMemoryError; ArgumentError for parts that are no longer arrays;
    TransformError for a tensor inside a function transform.
    """
    target = backend_of_device(device)
    if isinstance(array, LevelArray):
        raise TransformError(
            f"{array!r} cannot be moved to {device!r} inside a function transform",
            hint="move it before, or use array_api.astype(x, x.dtype, device=...)",
        )
    array = materialized(array)
    layout = find_layout(type(array))
    backend = find_backend(type(array)) if layout is None else layout.backend_of(array)
    assert backend is not None, "a tensor's array is one of a backend"
    parts = [array] if layout is None else layout.parts(array)
    if layout is not None:
        layout.check_arrays(parts)  # below, one backend copies all of them
    moved: list[Any]
    if target.device_type == "meta" and not isinstance(parts[0], MetaArray):
        # Only shapes and dtypes are needed, so do not copy the elements to the host.
        moved = [MetaArray(tuple(part.shape), backend.dtype_of(part)) for part in parts]
    else:
        with device_errors(backend.device_of(parts[0]) if target.device_type == "cpu" else device):
            moved = [target.from_host(backend.to_host(part), device) for part in parts]
    return moved[0] if layout is None else layout.assemble(moved, layout.facts(array))


def copy_of(array: Any) -> Any:
    """Return a copy of an array of any backend and layout in newly allocated memory.

    Raises DeviceMemoryError.
    """
    backend = find_backend(type(array))
    if backend is not None:
        return backend.copy(array)
    if isinstance(array, LazyArray):
        return array.materialized()
    layout = find_layout(type(array))
    assert layout is not None, "an array is one of a backend or of a layout"
    copy = layout.backend_of(array).copy
    return layout.assemble([copy(part) for part in layout.parts(array)], layout.facts(array))


def on_host(array: Any) -> Any:
    """Return an array of any backend and layout in host memory, without a copy if it is there.

    Raises DeviceError if the elements cannot be read.
    """
    array = materialized(array)
    layout = find_layout(type(array))
    if layout is None:
        backend = find_backend(type(array))
        if backend is None:
            return array
        with device_errors(backend.device_of(array)):
            return backend.to_host(array)
    return array if device_of(array) == "cpu" else on_device(array, "cpu")
