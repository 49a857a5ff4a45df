"""The part of CuPy that we use, over host memory: there need not be a GPU where tests run.

Names and signatures are CuPy's; `test_cupy_stand_in.py` compares them where CuPy is installed.
Work is done at once, and every order that a stream is given is written down.
"""

from __future__ import annotations

import ctypes
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

DEVICES = 2


class CUDARuntimeError(RuntimeError):
    """``cupy.cuda.runtime.CUDARuntimeError``."""

    __module__ = "cupy_backends.cuda.api.runtime"

    def __init__(self, status: int, text: str = "cudaErrorUnknown") -> None:
        super().__init__(text)
        self.status = status


class OutOfMemoryError(MemoryError):
    """``cupy.cuda.memory.OutOfMemoryError``."""

    __module__ = "cupy.cuda.memory"

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,})")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Stream] = {}


_thread = _Thread()
contexts: set[int] = set()
"""The GPUs that have one, of this process: since CUDA 12, to choose a GPU makes it."""


def _set_device(device: int) -> None:
    if device >= DEVICES:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
    contexts.add(device)
    _thread.device = device


class Device:
    """``cupy.cuda.Device``: a block in which it is the current one."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _thread.device if device is None else device

    def __enter__(self) -> None:
        self._before = _thread.device
        if self.id != self._before:
            _set_device(self.id)

    def __exit__(self, *exc_info: object) -> None:
        _set_device(self._before)

    @property
    def pci_bus_id(self) -> str:
        return f"0000:0{self.id}:00.0"

    def use(self) -> None:
        _set_device(self.id)


class Event:
    """``cupy.cuda.Event``."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.stream: Stream | None = None
        self.waits = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        self.waits += 1


class Stream:
    """``cupy.cuda.Stream``, whose work may have failed."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = 0 if null else 2 if ptds else id(self)
        self.failure: Exception | None = None
        self.waited_for: list[Stream | None] = []
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        if self.failure is not None:
            raise self.failure

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.waited_for.append(event.stream)

    def __enter__(self) -> Stream:
        self._before = _thread.device, _thread.streams.get(_thread.device, Stream.null)
        return self.use()

    def __exit__(self, *exc_info: object) -> None:
        device, stream = self._before
        _thread.streams[device] = stream

    def use(self) -> Stream:
        _thread.streams[_thread.device] = self
        return self


class PooledMemory:
    """``cupy.cuda.memory.PooledMemory``."""


class ndarray:  # noqa: N801 - CuPy's name
    """``cupy.ndarray``."""

    __module__ = "cupy"

    def __init__(self, host: np.ndarray[Any, Any], device: int | None = None) -> None:
        self.host, self.device = host, Device(device)
        self.dtype, self.shape, self.nbytes = host.dtype, host.shape, host.nbytes
        self.size = host.size
        self.base, self.flags = host.base, host.flags
        self.data = SimpleNamespace(ptr=host.ctypes.data, mem=PooledMemory())

    def __dlpack__(self) -> object:
        raise AssertionError("NumPy cannot read a GPU's memory")

    def __setitem__(self, place: Any, value: Any) -> None:
        self.host[place] = value.host

    def __int__(self) -> int:
        return int(self.host)

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    def set(self, arr: np.ndarray[Any, Any]) -> None:
        assert arr.flags.c_contiguous
        assert arr.dtype == self.dtype
        if not (self.flags.c_contiguous or self.flags.f_contiguous):
            raise RuntimeError("Cannot set to non-contiguous array")
        self.host[...] = arr

    def copy(self, order: str = "C") -> ndarray:
        return ndarray(self.host.copy(order), self.device.id)  # type: ignore[arg-type]


class Runtime:
    """``cupy.cuda.runtime``; after an error that sticks, nothing else comes of it."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3  # noqa: N815
    driver, version, devices = 13000, 12090, DEVICES
    free, total = 1 << 20, 1 << 30

    def __init__(self) -> None:
        self.sticky: CUDARuntimeError | None = None
        self.copies: list[tuple[int, int]] = []
        """The size and the direction of each that was begun."""
        self.opened: list[int] = []
        self.handles: dict[bytes, int] = {}

    def _check(self) -> None:
        if self.sticky is not None:
            raise self.sticky

    def getDevice(self) -> int:  # noqa: N802
        return _thread.device

    def setDevice(self, device: int) -> None:  # noqa: N802
        _set_device(device)

    def getDeviceCount(self) -> int:  # noqa: N802
        self._check()
        return self.devices

    def driverGetVersion(self) -> int:  # noqa: N802
        return self.driver

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return self.version

    def getDeviceProperties(self, device: int) -> dict[str, Any]:  # noqa: N802
        return {"uuid": bytes([device]) * 16}

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        self._check()
        return self.free, self.total

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._check()
        self.copies.append((size, kind))
        ctypes.memmove(dst, src, size)

    def ipcGetMemHandle(self, devPtr: int) -> bytes:  # noqa: N802, N803
        handle = devPtr.to_bytes(8).rjust(64, b"h")
        self.handles[handle] = devPtr
        return handle

    def ipcOpenMemHandle(self, handle: bytes, flags: int = 1) -> int:  # noqa: N802
        if handle not in self.handles:
            raise CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument")
        self.opened.append(self.handles[handle])
        return self.handles[handle]

    def ipcCloseMemHandle(self, devPtr: int) -> None:  # noqa: N802, N803
        self.opened.remove(devPtr)


class Pool:
    """``cupy.get_default_memory_pool()``, and that of pinned memory."""

    def __init__(self) -> None:
        self.frees = self.limit = 0

    def get_limit(self) -> int:
        return self.limit

    def total_bytes(self) -> int:
        return 4096

    def used_bytes(self) -> int:
        return 1024

    def free_all_blocks(self) -> None:
        self.frees += 1


def alloc_pinned_memory(size: int) -> Any:
    """A buffer that knows where it is."""
    cls = type("Pinned", (ctypes.c_char * size,), {"ptr": property(ctypes.addressof)})
    return cls()


def make_module() -> Any:
    """The module ``cupy``."""
    module: Any = ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    Stream.null = Stream(null=True)
    pool, pinned = Pool(), Pool()
    runtime = Runtime()
    module.ndarray = ndarray
    module.asarray = lambda a: ndarray(np.array(a))
    module.empty = lambda shape, dtype: ndarray(np.empty(shape, dtype))
    module.ascontiguousarray = lambda a: ndarray(np.ascontiguousarray(a.host), a.device.id)
    module.from_dlpack = lambda array: ndarray(array.array)
    module.get_default_memory_pool = lambda: pool
    module.get_default_pinned_memory_pool = lambda: pinned
    module.cuda = SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=Stream,
        runtime=runtime,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        alloc_pinned_memory=alloc_pinned_memory,
        get_current_stream=lambda device_id=-1: _thread.streams.get(
            _thread.device if device_id < 0 else device_id, Stream.null
        ),
    )
    _thread.device, _thread.streams = 0, {}
    contexts.clear()
    return module
