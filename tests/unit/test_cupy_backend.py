"""CuPy's arrays as tensors, with a stand-in for CuPy; on a GPU, `tests/gpu` has the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opdispatch import DeviceTransfers, Tensor, device_transfers
from opdispatch.arrays import CupyBackend, backend_of_device, find_backend, find_lost_device
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError
from tests.unit.cupy_stand_in import CUDARuntimeError, OutOfMemoryError

X = np.arange(6.0).reshape(2, 3)


def test_arrays_are_moved_copied_and_written_to_on_their_gpu(cupy_stand_in: Any):
    cupy = CupyBackend()
    array = cupy.from_host(X, "cuda:1")
    assert cupy.device_of(array) == "cuda:1"
    assert find_backend(type(array)) is backend_of_device("cuda:0")
    np.testing.assert_array_equal(cupy.to_host(array), X)
    whole = cupy_stand_in.ndarray(X.copy(), 1)
    view = cupy_stand_in.ndarray(whole.host[:, ::-1], 1)
    assert [cupy.is_its_own(each) for each in (whole, view)] == [True, False]
    assert cupy.device_of(cupy.copy(view)) == "cuda:1"
    np.testing.assert_array_equal(cupy.to_host(cupy.copy(view)), X[:, ::-1])
    cupy.assign(whole, X[::-1].astype(np.float32))
    np.testing.assert_array_equal(whole.host, X[::-1])
    cupy.assign(whole, array)
    np.testing.assert_array_equal(whole.host, X)
    cupy.assign(view, X)
    np.testing.assert_array_equal(whole.host, X[:, ::-1])
    assert Tensor(whole).device == "cuda:1"
    whole.data.mem = type("UnownedMemory", (), {})()
    assert not cupy.is_its_own(whole)
    foreign = SimpleNamespace(array=X)
    np.testing.assert_array_equal(cupy.to_host(cupy.adopt(foreign)), X)


def test_transfers_to_and_from_a_gpu_are_counted(cupy_stand_in: Any):
    cupy, before = CupyBackend(), device_transfers().get("cuda:1", DeviceTransfers())
    array = cupy.from_host(X, "cuda:1")
    cupy.assign(array, X.astype(np.float32))
    cupy.assign(array, cupy.copy(array))
    cupy.to_host(array)
    after = device_transfers()["cuda:1"]
    assert after.to_device - before.to_device == 96
    assert after.from_device - before.from_device == 48


def test_cuda_error_becomes_one_sentence(cupy_stand_in: Any):
    cupy = CupyBackend()
    with pytest.raises(DeviceError, match=r"48 bytes .* 'cuda:5' \(CUDARuntimeError: cudaErrorInv"):
        cupy.from_host(X, "cuda:5")
    cupy.synchronize("cuda:0")
    cupy.stream("cuda:0").failure = CUDARuntimeError(400, "cudaErrorInvalidResourceHandle")
    with pytest.raises(DeviceError, match=r"the work on 'cuda:0' has failed .*ResourceHandle"):
        cupy.synchronize("cuda:0")
    assert cupy.lost is None


def test_full_gpu_frees_unused_memory_once_and_retries(
    cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch
):
    attempts: list[int] = []

    def full(array: np.ndarray) -> object:
        attempts.append(array.nbytes)
        raise OutOfMemoryError(512, 1024)

    monkeypatch.setattr(cupy_stand_in, "asarray", full)
    with pytest.raises(DeviceMemoryError, match="48 bytes cannot be put on 'cuda:1': ") as caught:
        CupyBackend().from_host(X, "cuda:1")
    assert attempts == [48, 48]
    assert cupy_stand_in.get_default_memory_pool().frees == 1
    assert "1048576 of its 1073741824 bytes are free" in caught.value.message
    assert caught.value.facts == {
        "device": "cuda:1",
        "asked": "48",
        "free": "1048576",
        "total": "1073741824",
        "held": "4096",
        "used": "1024",
    }


def test_room_that_was_only_held_is_used(cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch):
    pool = cupy_stand_in.get_default_memory_pool()
    make = cupy_stand_in.asarray

    def allocate(array: np.ndarray) -> object:
        if not pool.frees:
            raise OutOfMemoryError(512, 1024)
        return make(array)

    monkeypatch.setattr(cupy_stand_in, "asarray", allocate)
    np.testing.assert_array_equal(CupyBackend().from_host(X, "cuda:0").host, X)


def test_a_gpu_that_gives_nothing_but_errors_is_lost(cupy_stand_in: Any):
    cupy = CupyBackend()
    error = CUDARuntimeError(999, "cudaErrorUnknown: unknown error")
    cupy.stream("cuda:1").failure = error
    cupy_stand_in.cuda.runtime.sticky = error
    with pytest.raises(
        DeviceLostError, match=r"cuda:1 has failed, and this process has lost all its arrays"
    ) as caught:
        cupy.synchronize("cuda:1")
    assert cupy.lost is caught.value
    assert caught.value.facts == {"device": "cuda:1"}
    assert find_lost_device() is None  # that backend is not registered


def test_kernel_error_is_explained_for_its_gpu(cupy_stand_in: Any):
    cupy = CupyBackend()
    with cupy_stand_in.cuda.Device(1):
        full = cupy.explain(OutOfMemoryError(1 << 20, 0))
        assert isinstance(full, DeviceMemoryError)
        assert full.message.startswith("there is no room for 1048576 bytes on cuda:1: ")
        assert cupy_stand_in.get_default_memory_pool().frees == 1
        lost = cupy.explain(CUDARuntimeError(700, "cudaErrorIllegalAddress"))
        assert isinstance(lost, DeviceLostError)
        assert cupy.lost is lost
    assert cupy.explain(ValueError("something else")) is None
    assert cupy.explain(DeviceError("ours")) is None


def test_a_gpu_that_does_not_even_say_its_number_is_the_interpreters(
    cupy_stand_in: Any, monkeypatch: pytest.MonkeyPatch
):
    error = CUDARuntimeError(700, "cudaErrorIllegalAddress")

    def refuse() -> int:
        raise error

    monkeypatch.setattr(cupy_stand_in.cuda.runtime, "getDevice", refuse)
    cupy = CupyBackend()
    cupy.home = "cuda:1"
    found = cupy.explain(error)
    assert isinstance(found, DeviceLostError)
    assert found.facts == {"device": "cuda:1"}


def test_without_cupy_nothing_is_said_of_it():
    assert CupyBackend().explain(MemoryError()) is None
