"""The devices that kernels of this interpreter can use."""

from __future__ import annotations

from opdispatch.arrays import backends


def find_devices() -> list[str]:
    """``cpu``, and ``cuda:0`` and so on where CuPy finds devices."""
    devices = []
    for backend in backends():
        kind, count = backend.device_type, backend.device_count()
        devices += ["cpu"] if kind == "cpu" else [f"{kind}:{number}" for number in range(count)]
    return devices
