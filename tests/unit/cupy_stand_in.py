"""What we use of CuPy, over host memory: there need not be a GPU where tests run."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

DEVICES = 2


class Device:
    """``cupy.cuda.Device``: a block in which it is the current one."""

    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> None:
        if self.id >= DEVICES:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def __exit__(self, *exc_info: object) -> None:
        return None


class Stream:
    """``cupy.cuda.Stream``, whose work may have failed."""

    failure: Exception | None = None

    def synchronize(self) -> None:
        if self.failure is not None:
            raise self.failure


class ndarray:  # noqa: N801 - CuPy's name
    """``cupy.ndarray``."""

    __module__ = "cupy"

    def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
        self.host, self.device = host, Device(device)
        self.dtype, self.shape, self.nbytes = host.dtype, host.shape, host.nbytes
        self.base, self.flags = host.base, host.flags

    def __dlpack__(self) -> object:
        raise AssertionError("NumPy cannot read a GPU's memory")

    def __setitem__(self, place: Any, value: Any) -> None:
        self.host[place] = value.host

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    def set(self, array: np.ndarray[Any, Any]) -> None:
        assert array.flags.c_contiguous
        assert array.dtype == self.dtype
        self.host[...] = array

    def copy(self, order: str = "C") -> ndarray:
        return ndarray(self.host.copy(order), self.device.id)  # type: ignore[arg-type]


def make_module() -> Any:
    """The module ``cupy``."""
    module: Any = ModuleType("cupy")
    stream = Stream()
    module.ndarray = ndarray
    module.asarray = lambda array: ndarray(np.array(array))
    module.from_dlpack = lambda value: ndarray(value.array)
    module.cuda = SimpleNamespace(Device=Device, get_current_stream=lambda: stream)
    return module
