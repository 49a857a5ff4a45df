"""The devices that kernels of an interpreter can use."""

from __future__ import annotations

import os

from opdispatch.arrays import backend_of_device, backends, use_device
from opdispatch.errors import DeviceError

NO_DEVICE_STATUS = os.EX_UNAVAILABLE
"""The exit status of an interpreter whose device is not there, or does not work."""

ONE_STREAM = {"CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "0"}
"""The environment in which CuPy, when it is imported, has the same default stream in all threads.

Otherwise it has one a thread, and the work of calls that run in different ones no order.
"""


def find_devices(device: str = "") -> list[str]:
    """Return ``cpu``, and ``cuda:0`` and so on where CuPy finds devices.

    Of these, ``device`` alone if it is given. Raises DeviceError if that is not there.
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

    The device that is given is that of kernels which name none. It is used once: then it is known
    to work, and what it takes to begin, a second or so in which no other thread of Python's may
    run, is over before the daemon expects heartbeats. Raises DeviceError.
    """
    os.environ.update(ONE_STREAM)
    devices = find_devices(device)
    if device:
        use_device(device)
        backend_of_device(device).synchronize(device)
    return devices
