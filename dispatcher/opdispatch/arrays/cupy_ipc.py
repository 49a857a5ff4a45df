"""Copies of GPU arrays from one process to another on the same GPU, by CUDA IPC.

A handle identifies a whole allocation, from which CuPy's pool hands out blocks; the array's offset
is therefore sent with it. The reader opens the allocation, copies the array on the GPU and closes
it at once, so two processes never write to one array. The owner must not reuse the memory until it
has been read (``opdispatch_server.worker.values.device_exports``). CUDA counts how often a process
has opened an allocation, so threads need no lock around opening and closing.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from opdispatch.arrays.device_memory import DeviceMemory
from opdispatch.errors import DeviceError

HANDLE_BYTES = 64
"""Size of a ``cudaIpcMemHandle_t``."""


def device_id_of(cupy: Any, number: int) -> bytes:
    """Return a GPU's PCI bus id and UUID, which are equal in all processes of the machine.

    Neither alone identifies it: MIG instances share a PCI bus id, and CuPy truncates a UUID at a
    zero byte.
    """
    uuid: bytes = cupy.cuda.runtime.getDeviceProperties(number)["uuid"]
    place: str = cupy.cuda.Device(number).pci_bus_id
    return place.encode() + b" " + uuid


def share_array(cupy: Any, array: Any, device_id: bytes) -> DeviceMemory:
    """Return the location of an array on the current GPU; wait until its elements are complete.

    The array must be C-contiguous, and must not be released until it has been read. Raises
    CUDARuntimeError for memory that cannot be shared (managed, or from ``cudaMallocAsync``), and
    DeviceError.
    """
    # An event on the legacy default stream also follows the work of all blocking streams.
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
    """Copy memory that another process shares to an array on the current GPU.

    The copy is complete on return. Raises DeviceError for an invalid location or a size other than
    the target's, and propagates errors of CuPy.
    """
    if len(memory.handle) != HANDLE_BYTES:
        raise DeviceError(
            f"the CUDA IPC handle has {len(memory.handle)} bytes; expected {HANDLE_BYTES}"
        )
    if memory.length != target.nbytes:
        raise DeviceError(f"the shared array has {memory.length} bytes; expected {target.nbytes}")
    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream.null
    address = runtime.ipcOpenMemHandle(memory.handle)
    try:
        base, size = allocation_of(address)
        if memory.offset + memory.length > size - (address - base):
            raise DeviceError(
                f"{memory.length} bytes at offset {memory.offset} exceed the shared allocation of "
                f"{size} bytes"
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
    """Return the start address and the size in bytes of the allocation that contains ``address``.

    The driver's cuMemGetAddressRange is called by ctypes, since CuPy does not wrap it. Raises
    DeviceError if the address is not in an allocation on the current GPU.
    """
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = _driver().cuMemGetAddressRange_v2(
        ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    if status:
        raise DeviceError(
            f"the NVIDIA driver has no allocation at {address:#x} (CUresult {status})"
        )
    return base.value, size.value


@functools.cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the NVIDIA driver's libcuda cannot be loaded ({error})") from error
