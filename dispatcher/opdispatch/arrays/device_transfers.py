"""Counters of the bytes copied between host and devices by this process."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceTransfers:
    """Numbers of bytes copied between host memory and one device."""

    to_device: int = 0
    from_device: int = 0
    from_peers: int = 0
    """Copies on the device itself, from another process."""


_mutex = (
    threading.Lock()
)  # guards writes to _transfers; its values are replaced as a whole, so reads need no lock
_transfers: dict[str, DeviceTransfers] = {}


def count_transfer(
    device: str, *, to_device: int = 0, from_device: int = 0, from_peers: int = 0
) -> None:
    """Count a copy of a backend's, of so many bytes."""
    with _mutex:
        before = _transfers.get(device, DeviceTransfers())
        _transfers[device] = DeviceTransfers(
            before.to_device + to_device,
            before.from_device + from_device,
            before.from_peers + from_peers,
        )


def device_transfers() -> dict[str, DeviceTransfers]:
    """Return the transfers so far by device, such as ``"cuda:0"``.

    Backends count what they copy; what kernels copy with their arrays' library is not counted.
    """
    with _mutex:
        return dict(sorted(_transfers.items()))
