"""Errors of CuPy and CUDA, and reasons why they cannot be used, each in a sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from opdispatch.arrays import cupy_errors
from opdispatch.arrays.cupy_errors import explain_absence, explain_error, import_cupy
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError
from opdispatch_server.device_discovery import find_devices
from tests.unit.cupy_stand_in import CUDARuntimeError, OutOfMemoryError


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's device node, which is there."""
    path = tmp_path / "nvidiactl"
    path.touch()
    monkeypatch.setattr(cupy_errors, "_DRIVERS", (path,))
    return path


def test_without_cupy_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert explain_absence().startswith("CuPy is not installed (`pip install 'cupy-cuda12x[ctk]'`")
    with pytest.raises(DeviceError, match="no CuPy for arrays on 'cuda:0': CuPy is not installed"):
        import_cupy("cuda:0")


def test_cupy_that_cannot_be_imported_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: Path
):
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.12: cannot open\\n')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    why = r"CuPy is installed, but cannot be imported \(libcudart.so.12: cannot open\)"
    with pytest.raises(DeviceError, match=why):
        import_cupy("cuda:0")
    assert explain_absence() == why.replace("\\", "")


def test_without_a_driver_there_are_no_gpus(cupy_stand_in: Any, driver: Path):
    assert find_devices() == ["cpu", "cuda:0", "cuda:1"]
    assert explain_absence() == ""
    driver.unlink()
    assert explain_absence() == "CuPy is installed, but the system has no NVIDIA driver"
    with pytest.raises(
        DeviceError, match=r"no device cuda:0 here; there is cpu \(CuPy is .* no NV"
    ):
        find_devices("cuda:0")


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (0, "the system has no NVIDIA driver"),
        (11040, "the NVIDIA driver is for CUDA 11.4, and too old for CuPy's 12.9"),
    ],
)
def test_a_driver_that_does_not_fit_says_so(
    cupy_stand_in: Any, driver: Path, version: int, why: str
):
    runtime = cupy_stand_in.cuda.runtime
    runtime.driver, runtime.sticky = version, CUDARuntimeError(35, "cudaErrorInsufficientDriver")
    assert explain_absence() == why
    assert find_devices() == ["cpu"]
    found = explain_error(cupy_stand_in, runtime.sticky, "cuda:0")
    assert type(found) is DeviceError
    assert found.message == f"cuda:0 cannot be used: {why}"


def test_a_driver_without_a_gpu_says_so(cupy_stand_in: Any, driver: Path):
    runtime = cupy_stand_in.cuda.runtime
    runtime.devices = 0
    assert explain_absence() == "the NVIDIA driver finds no GPU"
    runtime.sticky = CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device")
    assert explain_absence() == "CUDA says cudaErrorNoDevice: no CUDA-capable device"


def test_kernels_that_cannot_be_compiled_say_what_is_missing(cupy_stand_in: Any):
    missing = RuntimeError('Failure finding "libnvrtc.so.12":\nNo such file')
    found = explain_error(cupy_stand_in, missing, "cuda:0")
    assert type(found) is DeviceError
    assert "cannot be compiled: CUDA's compiler NVRTC is not installed" in found.message
    assert "cupy-cuda12x[ctk]" in found.hint


@pytest.mark.parametrize(
    ("asked", "library"),
    [
        ('"libcublas.so.12"', "libcublas"),
        ('"libcublasLt.so.12"', "libcublasLt"),  # which cuBLAS needs
        ('"libnvJitLink.so.13 or libnvJitLink.so.12"', "libnvJitLink"),  # cuSPARSE and cuSOLVER
    ],
)
def test_a_library_of_cuda_that_is_missing_is_named(cupy_stand_in: Any, asked: str, library: str):
    missing = ImportError(f"Failure finding {asked}: No such file: {asked}")
    behind = RuntimeError("the kernel's own")
    behind.__cause__ = missing
    found = explain_error(cupy_stand_in, behind, "cuda:0")
    assert type(found) is DeviceError
    why = f"cuda:0 cannot do this: CUDA's {library} is not installed (Failure"
    assert found.message.startswith(why)
    assert "cupy-cuda12x[ctk]" in found.hint
    assert explain_error(cupy_stand_in, ImportError("No module named 'mine'"), "cuda:0") is None


@pytest.mark.parametrize("status", [46, 802])
def test_a_gpu_that_others_have_or_that_is_not_ready_is_no_loss(cupy_stand_in: Any, status: int):
    error = cupy_stand_in.cuda.runtime.sticky = CUDARuntimeError(status, "cudaErrorSomething")
    found = explain_error(cupy_stand_in, error, "cuda:0")
    assert type(found) is DeviceError
    assert found.message == "cuda:0 cannot be used: CUDA says cudaErrorSomething"


def library_error(name: str, number: int) -> Exception:
    """Return the error that CuPy raises for one of CUDA's libraries."""
    cls = type(name, (RuntimeError,), {"__module__": "cupy_backends.cuda.libs.some"})
    error = cls(f"{name} {number}")
    setattr(error, "result" if name == "CuFFTError" else "status", number)
    return error


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("CUBLASError", 3), ("CUSOLVERError", 2), ("CuSparseError", 2), ("CuFFTError", 2)),
        ("CUDADriverError", 2),
    ],
)
def test_each_library_has_a_number_of_its_own_for_no_memory(
    cupy_stand_in: Any, name: str, number: int
):
    found = explain_error(cupy_stand_in, library_error(name, number), "cuda:0")
    assert isinstance(found, DeviceMemoryError)


@pytest.mark.parametrize(
    ("name", "number"), [("CUSOLVERError", 3), ("CuSparseError", 3), ("NVRTCError", 2)]
)
def test_a_value_that_a_library_does_not_take_is_none_of_the_gpu(
    cupy_stand_in: Any, name: str, number: int
):
    assert explain_error(cupy_stand_in, library_error(name, number), "cuda:0") is None


@pytest.mark.parametrize("status", [214, 700, 710, 719])
def test_errors_after_which_the_manual_has_the_process_end_lose_the_gpu(
    cupy_stand_in: Any, status: int
):
    found = explain_error(cupy_stand_in, CUDARuntimeError(status), "cuda:0")
    assert isinstance(found, DeviceLostError)


def test_others_do_if_nothing_works_any_more_also_from_behind_another_exception(cupy_stand_in: Any):
    error = CUDARuntimeError(999, "cudaErrorUnknown")
    behind = ValueError("the kernel's own")
    behind.__cause__ = error
    assert explain_error(cupy_stand_in, behind, "cuda:0") is None
    cupy_stand_in.cuda.runtime.sticky = error
    assert isinstance(explain_error(cupy_stand_in, behind, "cuda:0"), DeviceLostError)
    cupy_stand_in.cuda.runtime.sticky = CUDARuntimeError(2, "cudaErrorMemoryAllocation")
    assert explain_error(cupy_stand_in, error, "cuda:0") is None


def test_memory_that_cuda_itself_refuses_is_out_of_memory(cupy_stand_in: Any):
    error = CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
    assert isinstance(explain_error(cupy_stand_in, error, "cuda:0"), DeviceMemoryError)
    cupy_stand_in.cuda.runtime.sticky = error
    found = explain_error(cupy_stand_in, error, "cuda:0")
    assert found is not None
    assert found.message.endswith("(cudaErrorMemoryAllocation: out of memory)")


def test_error_names_the_limit_of_the_pool(cupy_stand_in: Any):
    pool = cupy_stand_in.get_default_memory_pool()
    error = OutOfMemoryError(512, 4096, 4096)
    found = explain_error(cupy_stand_in, error, "cuda:0")
    assert found is not None
    assert "limit" not in found.facts
    pool.limit = 4096
    found = explain_error(cupy_stand_in, error, "cuda:0")
    assert found is not None
    assert found.facts["limit"] == "4096"
    assert found.message.endswith("; it may hold 4096 (CUPY_GPU_MEMORY_LIMIT)")
