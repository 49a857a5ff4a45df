"""CuPy's arrays: the memory of NVIDIA GPUs, key ``CUDA``. CuPy is imported when it is needed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from opdispatch.arrays.backend import ArrayBackend, HostArray
from opdispatch.arrays.devices import split_device
from opdispatch.dispatch_key import BackendComponent
from opdispatch.errors import DeviceError, DeviceMemoryError

LOG = logging.getLogger("opdispatch.arrays")

# Without the driver's device node there is nothing to find, and importing CuPy takes long.
_DRIVER = Path("/dev/nvidiactl")
# dlpack.h: kDLCUDA, and memory that GPU and host share (kDLCUDAManaged).
_GPU_MEMORY = (2, 13)


class CupyBackend(ArrayBackend):
    """``cupy.ndarray`` and its subclasses, on the GPU that each says it is on."""

    device_type = "cuda"
    component = BackendComponent.CUDA
    dlpack_device_types = _GPU_MEMORY

    def owns(self, cls: type) -> bool:
        """Whether it is CuPy's class, by its name: CuPy need not be there."""
        return any(
            each.__module__.partition(".")[0] == "cupy" and each.__name__ == "ndarray"
            for each in cls.__mro__
        )

    def device_of(self, array: Any) -> str:
        """``"cuda:N"``."""
        return f"cuda:{array.device.id}"

    def device_count(self) -> int:
        """How many GPUs CuPy can use; 0 without CuPy, a driver or a GPU."""
        if not _DRIVER.exists() or importlib.util.find_spec("cupy") is None:
            return 0
        try:
            return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
        except Exception as error:  # an installation that does not fit: kernels cannot use it
            LOG.warning("CuPy is installed, but finds no device: %s", error)
            return 0

    def to_host(self, array: Any) -> HostArray:
        """A copy; waits for the current stream of the array's GPU."""
        with _errors(f"the array on {self.device_of(array)} cannot be read"):
            host: HostArray = array.get()
        return host

    def from_host(self, array: HostArray, device: str) -> Any:
        """A copy on that GPU, from the memory pool of CuPy."""
        cupy = _import(device)
        with _errors(f"{array.nbytes} bytes cannot be put on {device!r}"), _on(cupy, device):
            return cupy.asarray(array)

    def is_its_own(self, array: Any) -> bool:
        """Whether it is no view."""
        return array.base is None and bool(array.flags.c_contiguous)

    def copy(self, array: Any) -> Any:
        """A copy on the same GPU, made by its current stream."""
        with _errors(f"{array.nbytes} bytes cannot be copied on {self.device_of(array)!r}"):
            return array.copy(order="C")

    def assign(self, target: Any, contents: Any) -> None:
        """Writes in place, by the current stream of the target's GPU."""
        with _errors(f"the array on {self.device_of(target)!r} cannot be written to"):
            if isinstance(contents, np.ndarray):
                target.set(np.ascontiguousarray(contents, dtype=target.dtype))
            else:
                target[...] = contents

    def adopt(self, value: Any) -> Any:
        """A view; work of the other library's that is under way is waited for, by its stream."""
        return _import("cuda").from_dlpack(value)

    def stream(self, device: str) -> Any:
        """This thread's ``cupy.cuda.Stream`` on that GPU."""
        cupy = _import(device)
        with _errors(f"{device!r} cannot be used"), _on(cupy, device):
            return cupy.cuda.get_current_stream()

    def synchronize(self, device: str) -> None:
        """Waits for this thread's stream on that GPU."""
        with _errors(f"the work on {device!r} has failed"):
            self.stream(device).synchronize()


def _import(device: str) -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            f"this process has no CuPy for arrays on {device!r} ({error})",
            hint="install the cupy package that fits the machine's CUDA",
        ) from error


def _on(cupy: Any, device: str) -> Any:
    """A block in which that GPU, or the current one, is used."""
    _, number = split_device(device)
    return cupy.cuda.Device() if number is None else cupy.cuda.Device(number)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """What CuPy and CUDA raise, as one sentence."""
    try:
        yield
    except DeviceError:
        raise
    except MemoryError as error:
        raise DeviceMemoryError(f"{what}: there is no room ({error})") from error
    except Exception as error:  # cudaErrorInvalidDevice, a dtype that CuPy lacks, ...
        raise DeviceError(f"{what} ({type(error).__name__}: {error})") from error
