"""Arrays of one process on a GPU, read by another one on the same GPU: CUDA IPC.

A handle stands for a whole allocation, of which CuPy's pool hands out parts; so the place of an
array in it goes along. What is opened is copied at once, on the GPU, and closed: two processes
never write to one array, and none reads memory that its owner has given to another one
(``opdispatch_server.worker.values.device_exports`` sees to that). CUDA counts how often a process
has opened one allocation, so that threads need not know of each other.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from opdispatch.arrays.device_memory import DeviceMemory
from opdispatch.errors import DeviceError

HANDLE_BYTES = 64
"""cudaIpcMemHandle_t."""


def device_id_of(cupy: Any, number: int) -> bytes:
    """Return a GPU's PCI bus id and UUID, equal in all processes, however they number GPUs.

    Neither suffices: MIG instances share a PCI bus id, and CuPy cuts a UUID off at a zero byte.
    """
    uuid: bytes = cupy.cuda.runtime.getDeviceProperties(number)["uuid"]
    place: str = cupy.cuda.Device(number).pci_bus_id
    return place.encode() + b" " + uuid


def share_array(cupy: Any, array: Any, device_id: bytes) -> DeviceMemory:
    """Return where another process finds an array on the current GPU, once its elements are
    complete.

    The array must be C-contiguous and stay until it has been read. Raises what CuPy raises for
    memory that is not to be shared (that of ``cudaMallocAsync``, managed memory), and DeviceError.
    """
    # An event on the default stream comes after all work of the streams that block, too.
    event = cupy.cuda.Event(block=True, disable_timing=True)
    event.record(cupy.cuda.Stream.null)
    event.synchronize()
    base, _ = allocation_of(array.data.ptr)
    return DeviceMemory(
        device_id,
        cupy.cuda.runtime.ipcGetMemHandle(base),
        array.data.ptr - base,
        array.nbytes,
    )


def read_shared(cupy: Any, memory: DeviceMemory, target: Any) -> None:
    """Copy what another process shares to an array on the current GPU; complete on return.

    Raises DeviceError if the array cannot be read, and any error of CuPy.
    """
    if len(memory.handle) != HANDLE_BYTES:
        raise DeviceError(
            f"a handle of CUDA has {HANDLE_BYTES} bytes, and not {len(memory.handle)}"
        )
    if memory.length != target.nbytes:
        raise DeviceError(f"{memory.length} bytes are shared of an array of {target.nbytes}")
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream.null
    address = runtime.ipcOpenMemHandle(memory.handle)
    try:
        base, size = allocation_of(address)
        if memory.offset + memory.length > size - (address - base):
            raise DeviceError(
                f"{memory.length} bytes from {memory.offset} on are not in an allocation of {size}"
            )
        runtime.memcpyAsync(
            target.data.ptr,
            address + memory.offset,
            memory.length,
            runtime.memcpyDeviceToDevice,
            stream.ptr,
        )
        stream.synchronize()
    finally:
        runtime.ipcCloseMemHandle(address)


def allocation_of(address: int) -> tuple[int, int]:
    """Return the start and the size in bytes of the allocation that an address of the current GPU
    is in.

    Ask the driver (cuMemGetAddressRange), as CuPy has no such function. Raises DeviceError.
    """
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = _driver().cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    if status:
        raise DeviceError(
            f"the driver does not know the memory at {address:#x} (CUresult {status})"
        )
    return base.value, size.value


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the library of the NVIDIA driver cannot be loaded ({error})") from error
