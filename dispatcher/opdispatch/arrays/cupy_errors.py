"""Conversion of CuPy and CUDA errors to DeviceError, and the reason why no GPU can be used.

Note [Errors that stick]
    Some errors (an illegal address, a failed assertion, a memory or hardware fault) corrupt the
    CUDA context: every later call in the process fails with the same error, and only a new
    process can use the GPU again. After any other CUDA error, ``explain_error`` queries the free
    memory; if the query fails too, the GPU is lost for this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError

INSTALL_HINT = "`pip install 'cupy-cuda12x[ctk]'`, or cupy-cuda13x, whichever fits the driver"

# The device file of the driver on Linux, and on WSL.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
_ASKED = re.compile(r"allocating ([\d,]+) bytes")

_LIBRARIES_HINT = "`pip install 'cupy-cuda12x[ctk]'` brings it along, or cupy-cuda13x"
# The libraries that CuPy loads on demand, including cublasLt and nvJitLink, which others need.
_LIBRARY = re.compile(r"lib(?:cublas|cublasLt|cufft|curand|cusolver|cusparse|nvJitLink)\b")

# Status code for a failed allocation, by the CuPy error class of each CUDA library. Each library
# numbers its own (driver_types.h, cuda.h, cublas_api.h, cusolver_common.h, cusparse.h, cufft.h,
# curand.h).
_NO_MEMORY = {
    "CUDARuntimeError": 2,
    "CUDADriverError": 2,
    "CUBLASError": 3,
    "CUSOLVERError": 2,
    "CuSparseError": 2,
    "CuFFTError": 2,
    "CURANDError": 102,
}
# The classes whose status codes are those below: cudaError_t (driver_types.h), CUresult (cuda.h).
_OF_CUDA_ITSELF = ("CUDARuntimeError", "CUDADriverError")
_INSUFFICIENT_DRIVER = 35
# CUDA could not be initialized: not initialized (3), stub driver (34), driver too old (35, 36), GPU
# in exclusive use by another process (46), no device (100), system not ready, such as the fabric
# manager of NVSwitch machines (802), driver mismatch (803), unsupported compatibility mode (804).
_NEVER_WORKED = frozenset({3, 34, _INSUFFICIENT_DRIVER, 36, 46, 100, 802, 803, 804})
# After these, says CUDA's manual, the process must end: an ECC or NVLink error, an illegal address,
# a kernel timeout, a device assertion, or an instruction fault.
_STICKY = frozenset({214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719})


def import_cupy(device: str) -> Any:
    """Return the module ``cupy``. Raises DeviceError if it cannot be imported."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            f"this process has no CuPy for arrays on {device!r}: {_explain_import(error)}",
            hint=INSTALL_HINT,
        ) from error


def has_driver() -> bool:
    """Return whether the system has an NVIDIA driver, without importing CuPy."""
    return any(path.exists() for path in _DRIVERS)


def explain_absence() -> str:
    """Return the reason why CuPy cannot use a GPU in this process; empty if it can."""
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed ({INSTALL_HINT})"
    if not has_driver():
        return "CuPy is installed, but the system has no NVIDIA driver"
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        return _explain_import(error)
    try:
        if cupy.cuda.runtime.getDeviceCount():
            return ""
    except Exception as error:  # a mismatched installation may raise any exception
        return _explain_driver(cupy, error)
    return "the NVIDIA driver finds no GPU"


def explain_error(cupy: Any, error: BaseException, device: str) -> DeviceError | None:
    """Return the DeviceError that explains an exception; None if the current device did not fail.

    ``device`` names the current device in the message. See Note [Errors that stick].
    """
    if isinstance(error, cupy.cuda.memory.OutOfMemoryError) or _is_refused_memory(error):
        return memory_error(cupy, error, device)
    chain = list(_chain(error))
    if any("libnvrtc" in str(each) for each in chain if not isinstance(each, DeviceError)):
        return DeviceError(
            f"kernels for {device} cannot be compiled: CUDA's compiler NVRTC is not installed "
            f"({' '.join(str(error).split())})",
            hint=_LIBRARIES_HINT,
        )
    for each in chain:  # CuPy loads CUDA's libraries on first use
        if isinstance(each, ImportError) and (library := _LIBRARY.search(str(each))):
            return DeviceError(
                f"{device} cannot do this: CUDA's {library[0]} is not installed "
                f"({' '.join(str(each).split())})",
                hint=_LIBRARIES_HINT,
            )
    found = next((each for each in chain if _is_cudas(each)), None)
    if found is None:
        return None
    status = _status_of(found) if type(found).__name__ in _OF_CUDA_ITSELF else None
    if status in _NEVER_WORKED:
        return DeviceError(f"{device} cannot be used: {_explain_driver(cupy, found)}")
    if status in _STICKY or _refuses_everything(cupy):
        return DeviceLostError(
            f"{device} has failed, and this process has lost all its arrays there "
            f"({type(found).__name__}: {found})",
            device=device,
        )
    return None


def memory_error(
    cupy: Any, error: BaseException, device: str, what: str = "", asked: int = 0
) -> DeviceMemoryError:
    """Return the error for a failed allocation, with the memory figures of the current device.

    ``device`` names that device, ``what`` the operation that failed, and ``asked`` is the size in
    bytes; 0 reads it from CuPy's message.
    """
    if not asked and (found := _ASKED.search(str(error))):
        asked = int(found[1].replace(",", ""))
    facts = {"device": device}
    if asked:
        facts["asked"] = str(asked)
    try:
        free, total = cupy.cuda.runtime.memGetInfo()
        pool = cupy.get_default_memory_pool()
        held, used, limit = pool.total_bytes(), pool.used_bytes(), pool.get_limit()
    except Exception:  # the query itself may fail for lack of memory
        figures = f"({error})"
    else:
        facts |= {"free": str(free), "total": str(total), "held": str(held), "used": str(used)}
        figures = (
            f"{free} of its {total} bytes are free, and CuPy's pool in this process holds {held}, "
            f"of which {used} are in use"
        )
        if limit:  # the device may have free memory that the limit keeps from this process
            facts["limit"] = str(limit)
            figures += f"; it may hold {limit} (CUPY_GPU_MEMORY_LIMIT)"
    what = what or f"there is no room for {asked or 'more'} bytes on {device}"
    return DeviceMemoryError(
        f"{what}: {figures}",
        hint="release arrays and remote tensors there, or reduce the memory of other processes",
        **facts,
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes and contexts."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _is_cudas(error: BaseException) -> bool:
    """Return whether the exception's class is CuPy's, as for error statuses of CUDA libraries."""
    return type(error).__module__.partition(".")[0] in ("cupy", "cupy_backends")


def _status_of(error: BaseException) -> Any:
    """Return the status code in a CuPy error: ``status``, or ``result`` for cuFFT; None if none."""
    return getattr(error, "status", getattr(error, "result", None))


def _is_refused_memory(error: BaseException) -> bool:
    expected = _NO_MEMORY.get(type(error).__name__)
    return _is_cudas(error) and expected is not None and _status_of(error) == expected


def _refuses_everything(cupy: Any) -> bool:
    try:
        cupy.cuda.runtime.memGetInfo()
    except Exception as error:
        return not _is_refused_memory(error)
    return False


def _explain_import(error: ImportError) -> str:
    if error.name == "cupy":
        return "CuPy is not installed"
    return f"CuPy is installed, but cannot be imported ({' '.join(str(error).split())})"


def _explain_driver(cupy: Any, error: BaseException) -> str:
    if _status_of(error) == _INSUFFICIENT_DRIVER:
        runtime = cupy.cuda.runtime
        driver = runtime.driverGetVersion()
        if not driver:
            return "the system has no NVIDIA driver"
        needed = _version(runtime.runtimeGetVersion())
        return f"the NVIDIA driver is for CUDA {_version(driver)}, and too old for CuPy's {needed}"
    return f"CUDA says {error}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def loaded_cupy() -> Any:
    """Return the module ``cupy`` if this process has imported it; else None."""
    return sys.modules.get("cupy")
