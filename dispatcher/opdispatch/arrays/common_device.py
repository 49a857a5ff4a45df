"""Lookup of the one device that all tensors of a call must share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opdispatch.arrays.devices import device_mismatch
from opdispatch.arrays.layouts import device_of
from opdispatch.arrays.tensor_types import find_key_bits


def common_device(operator: str, *values: Any) -> str | None:
    """Return the device of the plain arrays in a kernel's arguments, including those in lists.

    A zero-dimensional host array combines with any device and decides only if there is no other
    array. Returns None if there are no arrays. Raises DeviceError with PyTorch's message for arrays
    on two devices (``ATen/core/op_registration/adaption.h``).
    """
    found: str | None = None
    number: str | None = None
    for array in _arrays_in(values):
        device = device_of(array)
        if device == "cpu" and not array.shape:
            number = device
        elif found is None:
            found = device
        elif device != found:
            raise device_mismatch(operator, found, device)
    return found or number


def _arrays_in(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from (item for item in value if find_key_bits(item) is not None)
        elif find_key_bits(value) is not None:
            yield value
