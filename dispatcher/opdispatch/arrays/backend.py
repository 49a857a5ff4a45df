"""Interface of an array library whose arrays are tensors here.

    class Accelerator(ArrayBackend):            # one file is all that a backend needs
        device_type = "privateuseone"
        component = BackendComponent.PrivateUse1
        ...

    register_backend(Accelerator())

From then on its arrays have dispatch keys, `Tensor` takes them, and they travel: as bytes in host
memory, and back onto their device where they arrive, in every process that has the backend.
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
    """Arrays of one library, in the memory of one type of device. Any thread may use it."""

    device_type: ClassVar[str]
    """PyTorch's name for the type of device: ``"cpu"``, ``"cuda"``, ``"privateuseone"``, ..."""
    component: ClassVar[BackendComponent]
    """The backend's bit in key sets."""
    dlpack_device_types: ClassVar[tuple[int, ...]] = ()
    """The DLDeviceTypes whose memory ``adopt`` can use (``dlpack.h``); none without DLPack."""
    home: str = ""
    """The device of kernels that have no argument on one; empty: the first."""
    lost: DeviceLostError | None = None
    """Why this process can use its devices no more, until it ends; None while it can."""

    @property
    def key_bits(self) -> int:
        """The dispatch key word of a plain array: its dense key alone."""
        return bits_of_key(to_runtime_key(DispatchKey.Dense, self.component))

    @abstractmethod
    def owns(self, cls: type) -> bool:
        """Return whether instances of ``cls`` are arrays of this backend. Imports nothing."""

    @abstractmethod
    def device_of(self, array: Any) -> str:
        """Return the device of an array: ``"cpu"``, ``"cuda:1"``."""

    def dtype_of(self, array: Any) -> np.dtype[Any]:
        """Return the element type, as NumPy has it."""
        dtype: np.dtype[Any] = np.dtype(array.dtype)
        return dtype

    @abstractmethod
    def device_count(self) -> int:
        """Return the number of such devices that this process can use.

        0 where there are none, for any reason.
        """

    def explain_absence(self) -> str:
        """Return the reason why there are no such devices; empty if it is not known."""
        return ""

    def explain(self, error: BaseException) -> DeviceError | None:
        """Return the device error behind a kernel's exception; None if there is none.

        It is a DeviceMemoryError if there was no room, and a DeviceLostError, which is ``lost``
        from then on, if the device can be used no more.
        """
        return None

    @abstractmethod
    def to_host(self, array: Any) -> HostArray:
        """Return the elements in host memory, after all pending writes to them.

        A copy, unless that is where they are; ``count_transfer`` counts copies between host
        and device, here and in ``from_host`` and ``assign``. Raises DeviceError.
        """

    @abstractmethod
    def from_host(self, array: HostArray, device: str) -> Any:
        """Return a new array on ``device`` with these elements.

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
        """Write the elements of another array of this backend, or of a host array, of the same
        shape to ``target``. Raises DeviceError.
        """

    def device_id(self, device: str) -> bytes:
        """Return an id of the device that is equal in all processes of the machine.

        Empty if it cannot be shared.

        Raises DeviceError.
        """
        return b""

    def share(self, array: Any) -> DeviceMemory | None:
        """Return where another process finds the elements, for as long as the array is kept.

        Complete: waits for what is to be written to it. None: it cannot be shared, nor can what
        DeviceError is raised for.
        """
        return None

    def read_shared(
        self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Any:
        """Return a complete copy of the elements that another process shares.

        Raises DeviceError for memory that is not there, or is another one than that is said to be.
        """
        raise DeviceError(f"memory of {device!r} is not shared between processes")

    def adopt(self, value: Any) -> Any:
        """Return an array over the memory of another library's array, by DLPack.

        Raises BufferError.
        """
        raise BufferError(f"arrays on {self.device_type!r} are not shared by DLPack")

    def stream(self, device: str) -> Any:
        """Return the stream that orders this thread's work on ``device``; None if there is none."""
        return None

    def is_in_use(self) -> bool:
        """Return whether kernels here may use its devices, and so need ``kernel_block``."""
        return False

    def kernel_block(self, device: str) -> AbstractContextManager[Any] | None:
        """Return the block in which an interpreter runs one kernel, in its thread.

        None if none is needed.

        ``device`` is the one that the kernel uses if it asks for none: empty, the first. What is
        done in one block comes after all that has been done in those before it, on each device.
        Raises DeviceError on the way in and out.
        """
        return None

    def synchronize(self, device: str) -> None:
        """Wait until the work of the current stream of ``device`` is done. Raises DeviceError."""
        stream = self.stream(device)
        if stream is not None:
            stream.synchronize()
