"""Context managers that select a kernel's device and order its work there.

See ``ArrayBackend.kernel_block``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import backends_with_blocks
from opdispatch.arrays.layouts import elements_of

T = TypeVar("T")


def run_on_device(arguments: Iterable[Any], function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``, run in the kernel blocks for the device of ``arguments``.

    ``function`` calls a kernel with ``arguments``. See ``ArrayBackend.kernel_block``. Raises
    DeviceError, and propagates what ``function`` raises.
    """
    for backend in backends_with_blocks():
        if backend.is_in_use():
            return _run_in_blocks(arguments, function, *args)
    return function(*args)


def _run_in_blocks(arguments: Iterable[Any], function: Callable[..., T], *args: Any) -> T:
    with ExitStack() as stack:
        for backend in backends_with_blocks():
            if backend.is_in_use():
                device = device_among(backend, arguments) or backend.home
                if (block := backend.kernel_block(device)) is not None:
                    stack.enter_context(block)
        return function(*args)


def device_among(backend: ArrayBackend, values: Iterable[Any]) -> str:
    """Return the device of the first array of ``backend``, also in lists and Tensors, or ""."""
    for value in values:
        if isinstance(value, list | tuple):
            if found := device_among(backend, value):
                return found
            continue
        array = elements_of(getattr(value, "array", value))
        if backend.owns(type(array)):
            return backend.device_of(array)
    return ""
