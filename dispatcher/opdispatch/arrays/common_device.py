"""Determination of a call's device, which all its tensors must share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opdispatch.arrays.devices import device_mismatch
from opdispatch.arrays.layouts import device_of
from opdispatch.arrays.tensor_types import find_key_bits


def common_device(operator: str, *values: Any) -> str | None:
    """Return the device of the plain arrays among a kernel's arguments, also of those in lists.

    Zero-dimensional host arrays can be combined with any device, and determine it only if there are
    no others. Returns None without arrays. Raises DeviceError with PyTorch's text for arrays on two
    devices (``ATen/core/op_registration/adaption.h``).
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
