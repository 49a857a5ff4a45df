"""A simulated accelerator: its memory is NumPy's, and only its backend reads it.

It stands for any device with memory of its own: every transfer is counted, and it can be told to
fail. Its text is a part of kernel libraries, too.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from opdispatch import ArrayBackend, BackendComponent, DeviceMemory, count_transfer
from opdispatch.arrays import split_device
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError

DEVICES = 2
OTHERS_BYTES = 64
"""Offset of an array in its allocation, in bytes."""


class AcceleratorArray:
    """An array in the accelerator's memory. It does not offer its elements."""

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


class AcceleratorFaultError(RuntimeError):
    """Raised by the driver after a kernel has brought it down: nothing works any more."""


class AcceleratorFullError(MemoryError):
    """Raised by the driver when memory is short."""


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
        self._thread = threading.local()
        self._streams = [AcceleratorStream() for _ in range(DEVICES)]

    def owns(self, cls: type) -> bool:
        return issubclass(cls, AcceleratorArray)

    def device_of(self, array: Any) -> str:
        return f"{self.device_type}:{array.number}"

    def device_count(self) -> int:
        return DEVICES

    def explain(self, error: BaseException) -> DeviceError | None:
        if isinstance(error, AcceleratorFullError):
            return DeviceMemoryError(f"the accelerator is full: {error}", asked="48", free="7")
        if isinstance(error, AcceleratorFaultError):
            self.has_failed = True
            self.lost = DeviceLostError(f"the accelerator has failed: {error}")
        return self.lost if isinstance(error, AcceleratorFaultError) else None

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        self._check(self.device_of(array))
        self.downloads += 1
        count_transfer(self.device_of(array), from_device=array._memory.nbytes)
        copy: np.ndarray[Any, Any] = array._memory.copy()
        return copy

    def from_host(self, array: np.ndarray[Any, Any], device: str) -> AcceleratorArray:
        number = self._check(device)
        if self.room is not None and array.nbytes > self.room:
            raise DeviceMemoryError(f"{array.nbytes} bytes do not fit into {self.room} of {device}")
        self.uploads += 1
        count_transfer(device, to_device=array.nbytes)
        return AcceleratorArray(np.array(array), number)

    def copy(self, array: Any) -> AcceleratorArray:
        return AcceleratorArray(array._memory.copy(), array.number)

    def assign(self, target: Any, contents: Any) -> None:
        self._check(self.device_of(target))
        if isinstance(contents, np.ndarray):
            self.uploads += 1
            count_transfer(self.device_of(target), to_device=contents.nbytes)
        target._memory[...] = getattr(contents, "_memory", contents)

    def is_in_use(self) -> bool:
        return True

    def kernel_block(self, device: str) -> AbstractContextManager[None]:
        return self._current_device(self._check(device or self.device_type))

    @contextmanager
    def _current_device(self, number: int) -> Iterator[None]:
        before, self._thread.current = self.current, number
        yield
        self._thread.current = before

    @property
    def current(self) -> int:
        """The device that kernels of this thread use."""
        return getattr(self._thread, "current", 0)

    def device_id(self, device: str) -> bytes:
        return f"accelerator {self._check(device)}".encode()

    def share(self, array: Any) -> DeviceMemory | None:
        descriptor = os.memfd_create("accelerator")
        weakref.finalize(array, os.close, descriptor)
        os.write(descriptor, bytes(OTHERS_BYTES) + array._memory.tobytes())
        handle = f"/proc/{os.getpid()}/fd/{descriptor}".encode()
        return DeviceMemory(
            self.device_id(self.device_of(array)), handle, OTHERS_BYTES, array._memory.nbytes
        )

    def read_shared(
        self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> AcceleratorArray:
        number = self._check(device)
        try:
            allocation = Path(memory.handle.decode()).read_bytes()
        except (OSError, ValueError) as error:
            raise DeviceError(f"there is no memory {memory.handle!r}: {error}") from error
        if memory.offset + memory.length > len(allocation):
            raise DeviceError(f"{memory} is not in {len(allocation)} bytes")
        elements = allocation[memory.offset : memory.offset + memory.length]
        count_transfer(device, from_peers=len(elements))
        return AcceleratorArray(np.frombuffer(elements, dtype).reshape(shape).copy(), number)

    def stream(self, device: str) -> AcceleratorStream:
        return self._streams[self._check(device)]

    def _check(self, device: str) -> int:
        _, number = split_device(device)
        number = number or 0
        if number >= DEVICES:
            raise DeviceError(f"there is no {device!r}: this machine has {DEVICES} of them")
        if self.has_failed:
            self.lost = DeviceLostError(f"{device!r} has fallen off")
            raise self.lost
        return number
