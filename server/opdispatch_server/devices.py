"""The devices that kernels of an interpreter can use."""

from __future__ import annotations

from opdispatch.arrays import backends
from opdispatch.errors import DeviceError


def find_devices(device: str = "") -> list[str]:
    """``cpu``, and ``cuda:0`` and so on where CuPy finds devices; of these, ``device`` alone if it
    is given. Raises DeviceError if that is not there.
    """
    if device == "cpu":
        return ["cpu"]
    devices = []
    for backend in backends():
        kind, count = backend.device_type, backend.device_count()
        devices += ["cpu"] if kind == "cpu" else [f"{kind}:{number}" for number in range(count)]
    if device and device not in devices:
        raise DeviceError(f"there is no device {device} here; there is {', '.join(devices)}")
    return ["cpu", device] if device else devices
