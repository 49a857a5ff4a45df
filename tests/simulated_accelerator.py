"""An accelerator that is none: its memory is NumPy's, and nobody but its backend looks into it.

It stands for any device with memory of its own: every transfer is counted, and it can be told to
fail. Its text is a part of kernel libraries, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch import ArrayBackend, BackendComponent
from opdispatch.arrays import split_device
from opdispatch.errors import DeviceError, DeviceMemoryError

DEVICES = 2


class AcceleratorArray:
    """An array in the accelerator's memory. It offers its elements to nobody."""

    def __init__(self, memory: np.ndarray[Any, Any], number: int = 0) -> None:
        self._memory = memory
        self.number = number
        self.dtype = memory.dtype
        self.shape = memory.shape

    def __add__(self, other: AcceleratorArray) -> AcceleratorArray:
        assert self.number == other.number, "the kernel was given arrays of two devices"
        return AcceleratorArray(self._memory + other._memory, self.number)

    def __iadd__(self, other: AcceleratorArray) -> AcceleratorArray:
        self._memory += other._memory
        return self


class AcceleratorStream:
    """Counts how often it was waited for."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Accelerator(ArrayBackend):
    """All of its devices."""

    device_type = "privateuseone"
    component = BackendComponent.PrivateUse1

    def __init__(self) -> None:
        self.uploads = self.downloads = 0
        self.room: int | None = None
        """The most bytes that an array may have; None: any number."""
        self.has_failed = False
        self._streams = [AcceleratorStream() for _ in range(DEVICES)]

    def owns(self, cls: type) -> bool:
        return issubclass(cls, AcceleratorArray)

    def device_of(self, array: Any) -> str:
        return f"{self.device_type}:{array.number}"

    def device_count(self) -> int:
        return DEVICES

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        self._check(self.device_of(array))
        self.downloads += 1
        copy: np.ndarray[Any, Any] = array._memory.copy()
        return copy

    def from_host(self, array: np.ndarray[Any, Any], device: str) -> AcceleratorArray:
        number = self._check(device)
        if self.room is not None and array.nbytes > self.room:
            raise DeviceMemoryError(f"{array.nbytes} bytes do not fit into {self.room} of {device}")
        self.uploads += 1
        return AcceleratorArray(np.array(array), number)

    def copy(self, array: Any) -> AcceleratorArray:
        return AcceleratorArray(array._memory.copy(), array.number)

    def assign(self, target: Any, contents: Any) -> None:
        self._check(self.device_of(target))
        if isinstance(contents, np.ndarray):
            self.uploads += 1
        target._memory[...] = getattr(contents, "_memory", contents)

    def stream(self, device: str) -> AcceleratorStream:
        return self._streams[self._check(device)]

    def _check(self, device: str) -> int:
        _, number = split_device(device)
        number = number or 0
        if number >= DEVICES:
            raise DeviceError(f"there is no {device!r}: this machine has {DEVICES} of them")
        if self.has_failed:
            raise DeviceError(f"{device!r} has fallen off")
        return number
