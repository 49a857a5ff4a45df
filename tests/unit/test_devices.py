"""Which interpreters have a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from opdispatch.arrays import backend_of_device, cupy_errors
from opdispatch.errors import DeviceError
from opdispatch_server.device_discovery import find_devices, take_devices
from opdispatch_wire.library_source import load_source
from tests.unit.cupy_stand_in import CUDARuntimeError, contexts


def test_every_interpreter_has_a_cpu():
    devices = find_devices()
    assert devices[0] == "cpu"
    assert devices[1:] == [f"cuda:{number}" for number in range(len(devices) - 1)]


@pytest.fixture
def cuda(cupy_stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``cupy.cuda``, and a driver."""
    monkeypatch.setattr(cupy_errors, "_DRIVERS", (tmp_path,))
    for device in ("cpu", "cuda:0"):
        monkeypatch.setattr(backend_of_device(device), "home", "")
    return cupy_stand_in.cuda


def test_an_interpreter_has_used_the_gpu_that_it_is_given(cuda: Any):
    assert take_devices("cuda:1") == ["cpu", "cuda:1"]
    assert backend_of_device("cuda:1").home == "cuda:1"
    assert (contexts, cuda.Stream.null.waits) == ({1}, 1)


def test_an_interpreter_without_a_gpu_of_its_own_uses_none(cuda: Any):
    assert take_devices() == ["cpu", "cuda:0", "cuda:1"]
    assert take_devices("cpu") == ["cpu"]
    assert (contexts, cuda.Stream.null.waits) == (set(), 0)


def test_gpu_in_exclusive_use_is_not_taken(cuda: Any):
    cuda.Stream.null.failure = CUDARuntimeError(46, "cudaErrorDevicesUnavailable: busy")
    with pytest.raises(DeviceError, match=r"cuda:0 cannot be used: CUDA says .*: busy"):
        take_devices("cuda:0")


def test_interpreters_have_one_stream_for_all_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    monkeypatch.setattr(backend_of_device("cpu"), "home", "")
    take_devices("cpu")
    assert os.environ["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] == "0"


@pytest.mark.parametrize(
    ("on", "interpreter", "device"),
    [
        ("cpu", "", "cpu"),
        ("cuda", "", "cuda"),
        ("cuda:1", "", "cuda:1"),
        ("worker-1", "worker-1", ""),
        ("cuda-box", "cuda-box", ""),
        (None, "", ""),
    ],
)
def test_a_place_is_a_device_or_an_interpreter(on: str | None, interpreter: str, device: str):
    request = load_source("package.kernels", on=on).request
    assert (request.interpreter, request.device) == (interpreter, device)


def test_a_library_needs_an_interpreter():
    with pytest.raises(ValueError, match="interpreters is 0; expected 1 or more"):
        load_source("package.kernels", interpreters=0)
