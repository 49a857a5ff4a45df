"""CUDA IPC: part of an allocation, opened, copied and closed; and what is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opdispatch import DeviceMemory, DeviceTransfers, device_transfers
from opdispatch.arrays import CupyBackend, cupy_ipc
from opdispatch.errors import DeviceError
from tests.unit.cupy_stand_in import CUDARuntimeError, ndarray

X = np.arange(100.0)
DEVICE = "cuda:1"


class Driver:
    """``libcuda``, which knows one allocation."""

    def __init__(self, memory: np.ndarray) -> None:
        self.base, self.size = memory.ctypes.data, memory.nbytes

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:  # noqa: N802
        base._obj.value, size._obj.value = self.base, self.size
        return 0 if self.base <= address.value < self.base + self.size else 1


@pytest.fixture
def array(cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> ndarray:
    """Some elements in the middle of an allocation, as CuPy's pool hands them out."""
    driver = Driver(X)
    monkeypatch.setattr(cupy_ipc, "_driver", lambda: driver)
    return ndarray(X[10:30], 1)


@pytest.fixture
def runtime(cupy_stand_in: Any) -> Any:
    return cupy_stand_in.cuda.runtime


def test_an_array_is_shared_as_a_part_of_its_allocation(array: ndarray, runtime: Any):
    memory = CupyBackend().share(array)
    assert memory is not None
    assert (memory.offset, memory.length, len(memory.handle)) == (80, 160, cupy_ipc.HANDLE_BYTES)
    assert memory.device_id == CupyBackend().device_id(DEVICE) != CupyBackend().device_id("cuda:0")
    assert runtime.handles == {memory.handle: X.ctypes.data}


def test_shared_memory_is_copied_on_the_gpu_and_closed(array: ndarray, runtime: Any):
    cupy, before = CupyBackend(), device_transfers().get(DEVICE, DeviceTransfers())
    memory = cupy.share(array)
    assert memory is not None
    copy = cupy.read_shared(memory, (4, 5), X.dtype, DEVICE)
    np.testing.assert_array_equal(copy.host, X[10:30].reshape(4, 5))
    assert runtime.copies == [(160, runtime.memcpyDeviceToDevice)]
    assert runtime.opened == []
    assert device_transfers()[DEVICE].from_peers - before.from_peers == 160


def test_arrays_that_are_not_contiguous_or_are_empty_go_another_way(array: ndarray):
    cupy = CupyBackend()
    assert cupy.share(ndarray(X[::2], 1)) is None
    assert cupy.share(ndarray(X[:0], 1)) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda m: replace(m, handle=b"made up"),
            "handle has 7 bytes; expected 64",
        ),
        (lambda m: replace(m, handle=bytes(64)), "cudaErrorInvalidValue: invalid argument"),
        (
            lambda m: replace(m, offset=648),
            "160 bytes at offset 648 exceed the shared allocation of 800",
        ),
        (lambda m: replace(m, offset=2**64 - 160), "exceed the shared allocation of 800"),
        (lambda m: replace(m, length=168), "the shared array has 168 bytes; expected 160"),
        (
            lambda m: replace(m, device_id=b"another"),
            "the shared array is on another device than cuda:1",
        ),
    ],
)
def test_forged_handle_raises_and_leaves_nothing_open(
    array: ndarray, runtime: Any, change: Callable[[DeviceMemory], DeviceMemory], why: str
):
    cupy = CupyBackend()
    memory = cupy.share(array)
    assert memory is not None
    with pytest.raises(DeviceError, match=why):
        cupy.read_shared(change(memory), (20,), X.dtype, DEVICE)
    assert (runtime.opened, runtime.copies) == ([], [])
    assert cupy.lost is None


def test_failed_read_leaves_nothing_open(array: ndarray, runtime: Any):
    cupy = CupyBackend()
    memory = cupy.share(array)
    assert memory is not None
    runtime.sticky = CUDARuntimeError(999, "cudaErrorUnknown")
    with pytest.raises(DeviceError, match="has failed"):
        cupy.read_shared(memory, (20,), X.dtype, DEVICE)
    assert runtime.opened == []


def test_memory_that_the_driver_does_not_know_is_not_shared(array: ndarray):
    with pytest.raises(DeviceError, match="no allocation at 0x"):
        CupyBackend().share(ndarray(np.zeros(3), 1))
