"""The devices that kernels of this interpreter can use."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from pathlib import Path

LOG = logging.getLogger("opdispatch.interpreter")

# Without the driver's device node there is nothing to find, and importing CuPy takes long.
_DRIVER = Path("/dev/nvidiactl")


def find_devices() -> list[str]:
    """``cpu``, and ``cuda:0`` and so on where CuPy finds devices."""
    return ["cpu", *(f"cuda:{number}" for number in range(count_cuda_devices()))]


def count_cuda_devices() -> int:
    """How many devices CuPy can use; 0 without CuPy, a driver or a device."""
    if not _DRIVER.exists() or importlib.util.find_spec("cupy") is None:
        return 0
    try:
        cupy = importlib.import_module("cupy")
        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # an installation that does not fit: kernels cannot use it
        LOG.warning("CuPy is installed, but finds no device: %s", error)
        return 0
