"""Interface of an array library whose arrays are tensors.

    class Accelerator(ArrayBackend):
        device_type = "privateuseone"
        component = BackendComponent.PrivateUse1
        ...

    register_backend(Accelerator())

Registered arrays have dispatch keys, can be wrapped in ``Tensor``, and can be sent to other
processes: as bytes in host memory, copied to the same device on arrival. The receiving process must
have registered the backend, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeAlias

import numpy as np

from opdispatch.arrays.device_memory import DeviceMemory
from opdispatch.errors import DeviceError, DeviceLostError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import bits_of_key

HostArray: TypeAlias = "np.ndarray[Any, Any]"


class ArrayBackend(ABC):
    """Arrays of one library, in the memory of one type of device. Must be thread-safe."""

    device_type: ClassVar[str]
    """PyTorch's name for the type of device: ``"cpu"``, ``"cuda"``, ``"privateuseone"``, ..."""
    component: ClassVar[BackendComponent]
    """The backend's bit in key sets."""
    dlpack_device_types: ClassVar[tuple[int, ...]] = ()
    """The DLDeviceTypes whose memory ``adopt`` can use (``dlpack.h``); none without DLPack."""
    home: str = ""
    """Device of kernels without an argument on this type of device; empty for the first one."""
    lost: DeviceLostError | None = None
    """The error after which this process can no longer use the devices; None if there was none."""

    @property
    def key_bits(self) -> int:
        """The dispatch key word of a plain array: its dense key alone."""
        return bits_of_key(to_runtime_key(DispatchKey.Dense, self.component))

    @abstractmethod
    def owns(self, cls: type) -> bool:
        """Return whether instances of ``cls`` are arrays of this backend. Must import nothing."""

    @abstractmethod
    def device_of(self, array: Any) -> str:
        """Return the device of an array: ``"cpu"``, ``"cuda:1"``."""

    def dtype_of(self, array: Any) -> np.dtype[Any]:
        """Return the element type as a NumPy dtype."""
        dtype: np.dtype[Any] = np.dtype(array.dtype)
        return dtype

    @abstractmethod
    def device_count(self) -> int:
        """Return the number of devices that this process can use; 0 if none, for any reason."""

    def explain_absence(self) -> str:
        """Return the reason why ``device_count()`` is 0; empty if unknown."""
        return ""

    def explain(self, error: BaseException) -> DeviceError | None:
        """Return the DeviceError that explains a kernel's exception; None if it was not the device.

        Return a DeviceMemoryError if memory was short. If the device is unusable from now on, set
        ``lost`` to a DeviceLostError and return it.
        """
        return None

    @abstractmethod
    def to_host(self, array: Any) -> HostArray:
        """Return a NumPy array of the elements, after all pending writes to them.

        Copies unless the elements are in host memory. This method, ``from_host`` and ``assign``
        report copies between host and device to ``count_transfer``. Raises DeviceError.
        """

    @abstractmethod
    def from_host(self, array: HostArray, device: str) -> Any:
        """Return a new array on ``device`` with the elements of ``array``.

        Raises DeviceError if there is no such device, and DeviceMemoryError.
        """

    def is_its_own(self, array: Any) -> bool:
        """Return whether an array owns all of its memory, is C-contiguous and writable."""
        return False

    @abstractmethod
    def copy(self, array: Any) -> Any:
        """Return a C-contiguous copy on the same device. Raises DeviceMemoryError."""

    @abstractmethod
    def assign(self, target: Any, contents: Any) -> None:
        """Copy ``contents`` into ``target``.

        ``contents`` has the same shape, and is an array of this backend or a host array. Raises
        DeviceError.
        """

    def device_id(self, device: str) -> bytes:
        """Return an id of the device that is equal in all processes of the machine.

        Empty if its memory cannot be shared between processes. Raises DeviceError.
        """
        return b""

    def share(self, array: Any) -> DeviceMemory | None:
        """Return a handle by which another process can read the elements while the array exists.

        Waits for pending writes to the array. Returns None if the memory cannot be shared. Callers
        treat a DeviceError the same way.
        """
        return None

    def read_shared(
        self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Any:
        """Return a copy, of ``shape`` and ``dtype``, of memory that another process shares.

        The copy is complete on return. Raises DeviceError if the memory no longer exists, or does
        not match ``memory``.
        """
        raise DeviceError(f"memory of {device!r} is not shared between processes")

    def adopt(self, value: Any) -> Any:
        """Return an array over the memory of another library's array, imported by DLPack.

        Raises BufferError if the array cannot be imported.
        """
        raise BufferError(f"arrays on {self.device_type!r} are not shared by DLPack")

    def stream(self, device: str) -> Any:
        """Return the stream that orders this thread's work on ``device``; None if there is none."""
        return None

    def is_in_use(self) -> bool:
        """Return whether kernels in this process may use the devices, and need ``kernel_block``."""
        return False

    def kernel_block(self, device: str) -> AbstractContextManager[Any] | None:
        """Return the context manager in which an interpreter thread runs one kernel; None for none.

        ``device`` is the kernel's default device; empty for the first one. On each device, work
        submitted in one block runs after the work of all earlier blocks. Entering and leaving raise
        DeviceError.
        """
        return None

    def synchronize(self, device: str) -> None:
        """Wait for the work of this thread's stream on ``device``. Raises DeviceError."""
        stream = self.stream(device)
        if stream is not None:
            stream.synchronize()
