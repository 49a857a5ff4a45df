"""The devices that an interpreter's kernels can use."""

from __future__ import annotations

import os

from opdispatch.arrays import backend_of_device, backends, use_device
from opdispatch.errors import DeviceError

NO_DEVICE_STATUS = os.EX_UNAVAILABLE
"""The exit status of an interpreter whose device does not exist or does not work."""

ONE_STREAM = {"CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "0"}
"""The environment in which CuPy uses one default stream for all threads.

Otherwise each thread has its own, and calls that run in different threads are not ordered.
"""


def find_devices(device: str = "") -> list[str]:
    """Return ``cpu``, followed by ``cuda:0`` and so on if CuPy finds devices.

    If ``device`` is given, only that one follows. Raises DeviceError if it does not exist.
    """
    if device == "cpu":
        return ["cpu"]
    devices = []
    for backend in backends():
        kind, count = backend.device_type, backend.device_count()
        devices += ["cpu"] if kind == "cpu" else [f"{kind}:{number}" for number in range(count)]
    if device and device not in devices:
        why = next(
            (each.explain_absence() for each in backends() if device.startswith(each.device_type)),
            "",
        )
        raise DeviceError(
            f"there is no device {device} here; there is {', '.join(devices)}", hint=why
        )
    return ["cpu", device] if device else devices


def take_devices(device: str = "") -> list[str]:
    """Find devices like ``find_devices``, for an interpreter, before CuPy is imported.

    ``device`` becomes the default of kernels that name none. It is used once, which proves that it
    works, and initializes it: that may take a second during which no other Python thread runs, and
    is over before the daemon expects heartbeats. Raises DeviceError.
    """
    os.environ.update(ONE_STREAM)
    devices = find_devices(device)
    if device:
        use_device(device)
        backend_of_device(device).synchronize(device)
    return devices
