"""Counters of the bytes copied between host and devices by this process."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceTransfers:
    """Bytes copied to and from one device."""

    to_device: int = 0
    from_device: int = 0
    from_peers: int = 0
    """Bytes copied from another process's memory on the same device."""


_mutex = threading.Lock()  # guards _transfers: an update reads the old counters first
_transfers: dict[str, DeviceTransfers] = {}


def count_transfer(
    device: str, *, to_device: int = 0, from_device: int = 0, from_peers: int = 0
) -> None:
    """Add a copy by a backend, in bytes, to the counters of ``device``."""
    with _mutex:
        before = _transfers.get(device, DeviceTransfers())
        _transfers[device] = DeviceTransfers(
            before.to_device + to_device,
            before.from_device + from_device,
            before.from_peers + from_peers,
        )


def device_transfers() -> dict[str, DeviceTransfers]:
    """Return the bytes copied so far, by device name such as ``"cuda:0"``.

    Only copies made by backends are counted, not those a kernel makes with CuPy itself.
    """
    with _mutex:
        return dict(sorted(_transfers.items()))
