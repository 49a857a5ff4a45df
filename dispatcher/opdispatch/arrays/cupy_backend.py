"""The backend of CuPy's arrays: memory of NVIDIA GPUs, key ``CUDA``. CuPy is imported lazily."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np

from opdispatch.arrays.backend import ArrayBackend, HostArray
from opdispatch.arrays.cupy_errors import (
    explain_absence,
    explain_error,
    has_driver,
    import_cupy,
    loaded_cupy,
    memory_error,
)
from opdispatch.arrays.cupy_ipc import device_id_of, read_shared, share_array
from opdispatch.arrays.cupy_kernel_block import CupyKernelBlock
from opdispatch.arrays.device_memory import DeviceMemory
from opdispatch.arrays.device_transfers import count_transfer
from opdispatch.arrays.devices import split_device
from opdispatch.arrays.pinned_copies import LEAST_BYTES, PinnedCopies
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError
from opdispatch.keys.dispatch_key import BackendComponent

LOG = logging.getLogger("opdispatch.arrays")

T = TypeVar("T")

# CuPy's classes of memory imported by DLPack and by the CUDA array interface.
_MEMORY_OF_OTHERS = ("DLPackMemory", "UnownedMemory")

# dlpack.h: kDLCUDA and kDLCUDAManaged.
_GPU_MEMORY = (2, 13)


class CupyBackend(ArrayBackend):
    """Backend of ``cupy.ndarray`` and its subclasses, on any number of GPUs.

    ``_lock`` protects ``_pinned``, the pinned copies by GPU number; None where pinning has failed.
    """

    device_type = "cuda"
    component = BackendComponent.CUDA
    dlpack_device_types = _GPU_MEMORY

    def __init__(self) -> None:
        self._finds_gpu: bool | None = None  # None: not yet determined
        self._ids: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._pinned: dict[int, PinnedCopies | None] = {}

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is a CuPy array class, judged by name so as not to import CuPy."""
        return any(
            each.__module__.partition(".")[0] == "cupy" and each.__name__ == "ndarray"
            for each in cls.__mro__
        )

    def device_of(self, array: Any) -> str:
        """Return ``"cuda:N"``."""
        return f"cuda:{array.device.id}"

    def device_count(self) -> int:
        """Return the number of GPUs that CuPy can use; 0 without CuPy, a driver or a GPU."""
        # Importing CuPy is slow; check first whether it can be of use.
        if not has_driver() or importlib.util.find_spec("cupy") is None:
            return 0
        try:
            return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
        except Exception:  # CuPy and the driver do not match, so kernels cannot use a GPU either
            LOG.warning("CuPy is installed, but cannot be used: %s", explain_absence())
            return 0

    def explain_absence(self) -> str:
        """Return which of CuPy, the driver and a GPU is missing or incompatible; empty if none."""
        return explain_absence()

    def explain(self, error: BaseException) -> DeviceError | None:
        """Return the DeviceError for a CUDA error on this thread's current device.

        Returns None for errors that are not the device's. Frees CuPy's unused memory if memory was
        short, and sets ``lost`` if the device is lost.
        """
        cupy = loaded_cupy()
        if cupy is None or isinstance(error, DeviceError):
            return None
        try:
            device = f"cuda:{cupy.cuda.runtime.getDevice()}"
        except Exception:  # the context is corrupted: see Note [Errors that stick]
            device = self.home or "cuda"
        found = explain_error(cupy, error, device)
        if isinstance(found, DeviceMemoryError):
            free_unused(cupy)  # so that the failed kernel's memory is available to other processes
        return self._noted(found)

    def to_host(self, array: Any) -> HostArray:
        """Return a copy in host memory, after the work on the current stream of the array's GPU."""
        device = self.device_of(array)
        with self._errors(f"the array on {device} cannot be read", device) as cupy:
            host = self._download(cupy, array)
        count_transfer(device, from_device=host.nbytes)
        return host

    def from_host(self, array: HostArray, device: str) -> Any:
        """Return a copy on the GPU ``device``, allocated from CuPy's memory pool."""
        what = f"{array.nbytes} bytes cannot be put on {device!r}"
        with self._errors(what, device, array.nbytes) as cupy:
            if array.nbytes < LEAST_BYTES:
                there = _with_room(cupy, lambda: array_of_cupy(cupy, array))
            else:
                there = _with_room(cupy, lambda: cupy.empty(array.shape, array.dtype))
                self._upload(cupy, np.ascontiguousarray(array), there)
        count_transfer(self.device_of(there), to_device=array.nbytes)
        return there

    def is_its_own(self, array: Any) -> bool:
        """Return whether it is C-contiguous and not a view of an array or of imported memory."""
        is_of_others = type(array.data.mem).__name__ in _MEMORY_OF_OTHERS
        return array.base is None and not is_of_others and bool(array.flags.c_contiguous)

    def copy(self, array: Any) -> Any:
        """Return a C-contiguous copy on the same GPU, made on its current stream."""
        device = self.device_of(array)
        what = f"{array.nbytes} bytes cannot be copied on {device!r}"
        with self._errors(what, device, array.nbytes) as cupy:
            return _with_room(cupy, lambda: array.copy(order="C"))

    def assign(self, target: Any, contents: Any) -> None:
        """Write ``contents`` into ``target`` on the current stream of the target's GPU."""
        device = self.device_of(target)
        with self._errors(f"the array on {device!r} cannot be written to", device) as cupy:
            if isinstance(contents, np.ndarray):
                source = np.ascontiguousarray(contents, dtype=target.dtype)
                there = target
                if not target.flags.c_contiguous:  # host copies need contiguous GPU memory
                    there = _with_room(cupy, lambda: cupy.empty(target.shape, target.dtype))
                if source.nbytes >= LEAST_BYTES:
                    self._upload(cupy, source, there)
                else:
                    there.set(source)
                if there is not target:
                    target[...] = there
                count_transfer(device, to_device=target.nbytes)
            else:
                target[...] = contents

    def device_id(self, device: str) -> bytes:
        """Return the result of ``device_id_of``, cached since the call is slow."""
        number = split_device(device)[1]
        if number is None:
            return b""
        if device not in self._ids:
            # Do not change the current device: the query needs none.
            with self._errors(f"{device!r} cannot be used", self.device_type) as cupy:
                self._ids[device] = device_id_of(cupy, number)
        return self._ids[device]

    def share(self, array: Any) -> DeviceMemory | None:
        """Return a CUDA IPC handle; wait until the elements are complete.

        Returns None for empty arrays and for those that are not C-contiguous.
        """
        if not array.nbytes or not array.flags.c_contiguous:
            return None
        device = self.device_of(array)
        with self._errors(f"the array on {device} cannot be shared", device) as cupy:
            return share_array(cupy, array, self.device_id(device))

    def read_shared(
        self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
    ) -> Any:
        """Return a copy, within the GPU, of an array that another process shares by CUDA IPC."""
        if memory.device_id != self.device_id(device):
            raise DeviceError(f"the shared array is on another device than {device}")
        what = f"{memory.length} bytes of another process cannot be read on {device}"
        with self._errors(what, device, memory.length) as cupy:
            target = _with_room(cupy, lambda: cupy.empty(shape, dtype))
            read_shared(cupy, memory, target)
        count_transfer(device, from_peers=memory.length)
        return target

    def adopt(self, value: Any) -> Any:
        """Return a view, ordered after the exporting library's pending work on its stream."""
        cupy = import_cupy("cuda")
        try:
            return cupy.from_dlpack(value)
        except Exception as error:
            if (found := self._noted(explain_error(cupy, error, "cuda"))) is not None:
                raise found from error
            raise

    def is_in_use(self) -> bool:
        """Return whether CuPy has been imported and finds a GPU."""
        found = self._finds_gpu
        if found is None:
            if "cupy" not in sys.modules:
                return False
            found = self._finds_gpu = self.device_count() > 0
        return found

    def kernel_block(self, device: str) -> CupyKernelBlock:
        """Return a CupyKernelBlock. See Note [The order of a GPU's work]."""
        cupy, name = import_cupy(device), device or "cuda"

        def explained(error: Exception) -> DeviceError:
            return self._explained(cupy, error, name, f"{name} cannot be used")

        number = split_device(name)[1]
        return CupyKernelBlock(cupy, number, explained, goes_back=not self.home)

    def stream(self, device: str) -> Any:
        """Return this thread's current ``cupy.cuda.Stream`` on ``device``."""
        with self._errors(f"{device!r} cannot be used", device) as cupy:
            return cupy.cuda.get_current_stream()

    def synchronize(self, device: str) -> None:
        """Wait for the work of this thread's current stream on ``device``."""
        with self._errors(f"the work on {device!r} has failed", device):
            self.stream(device).synchronize()

    @contextmanager
    def _errors(self, what: str, device: str, asked: int = 0) -> Iterator[Any]:
        """Make ``device`` current in the block, yield the module ``cupy``, and convert its errors.

        Errors of CuPy and CUDA become a DeviceError whose message begins with ``what``.
        """
        cupy = import_cupy(device)
        try:
            with _on(cupy, device, goes_back=not self.home):
                try:
                    yield cupy
                except DeviceError:
                    raise
                except MemoryError as error:
                    raise memory_error(cupy, error, device, what, asked) from error
                except Exception as error:
                    raise self._explained(cupy, error, device, what) from error
        except DeviceError:
            raise
        except Exception as error:  # setDevice failed
            raise self._explained(cupy, error, device, what) from error

    def _explained(self, cupy: Any, error: Exception, device: str, what: str) -> DeviceError:
        found = self._noted(explain_error(cupy, error, device))
        # cudaErrorInvalidDevice, a dtype that CuPy lacks, ...
        return found or DeviceError(f"{what} ({type(error).__name__}: {error})")

    def _upload(self, cupy: Any, source: HostArray, target: Any) -> None:
        pinned = self._pinned_for(cupy, target.device.id)
        if pinned is None:
            target.set(source)
        else:
            pinned.upload(source, target)

    def _download(self, cupy: Any, array: Any) -> HostArray:
        pinned = None
        if array.nbytes >= LEAST_BYTES:
            pinned = self._pinned_for(cupy, array.device.id)
        if pinned is None:
            small: HostArray = array.get()
            return small
        source = _with_room(cupy, lambda: cupy.ascontiguousarray(array))
        host: HostArray = np.empty(array.shape, array.dtype)
        pinned.download(source, host)
        return host

    def _pinned_for(self, cupy: Any, number: int) -> PinnedCopies | None:
        """Return the pinned memory for copies to the current GPU; None if there is none."""
        with self._lock:
            if number not in self._pinned:
                try:
                    self._pinned[number] = PinnedCopies(cupy)
                except cupy.cuda.runtime.CUDARuntimeError as error:
                    LOG.warning("large copies to cuda:%d will be slow: %s", number, error)
                    self._pinned[number] = None
            return self._pinned[number]

    def _noted(self, error: DeviceError | None) -> DeviceError | None:
        if isinstance(error, DeviceLostError):
            self.lost = error
        return error


def array_of_cupy(cupy: Any, array: HostArray) -> Any:
    """Return a bit-exact copy of a host array on the current GPU.

    ``cupy.asarray`` would turn a zero-dimensional -0.0 into 0.0.
    """
    if array.ndim or array.dtype.kind not in "fc":
        return cupy.asarray(array)
    native = array.astype(array.dtype.newbyteorder("="))
    there = cupy.empty((), native.dtype)
    there.set(native)
    return there


@contextmanager
def _on(cupy: Any, device: str, *, goes_back: bool) -> Iterator[None]:
    """Make ``device`` current in the block; ``"cuda"`` means the GPU that is current already.

    Not by ``cupy.cuda.Device``, which creates a CUDA context on the GPU that it changes back to.
    See Note [The order of a GPU's work].
    """
    runtime, number = cupy.cuda.runtime, split_device(device)[1]
    before = runtime.getDevice()
    if number is None or number == before:
        yield
        return
    runtime.setDevice(number)
    try:
        yield
    finally:
        if goes_back:
            runtime.setDevice(before)


def _with_room(cupy: Any, allocate: Callable[[], T]) -> T:
    """Return ``allocate()``; if memory is short, free the pools' unused memory and retry once."""
    try:
        return allocate()
    except cupy.cuda.memory.OutOfMemoryError:
        free_unused(cupy)
        return allocate()


def free_unused(cupy: Any) -> None:
    """Return the unused memory of CuPy's pools to the device."""
    with suppress(Exception):  # every call fails after an error that sticks
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
