"""The devices that kernels of an interpreter can use."""

from __future__ import annotations

from opdispatch.arrays import backends, use_device
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
        why = next(
            (each.explain_absence() for each in backends() if device.startswith(each.device_type)),
            "",
        )
        raise DeviceError(
            f"there is no device {device} here; there is {', '.join(devices)}", hint=why
        )
    return ["cpu", device] if device else devices


def take_devices(device: str = "") -> list[str]:
    """``find_devices``; the one that is given is that of kernels which name none."""
    devices = find_devices(device)
    if device:
        use_device(device)
    return devices
