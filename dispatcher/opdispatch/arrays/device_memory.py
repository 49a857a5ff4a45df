"""Memory of a device that another process of the machine may read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Where the elements of an array are: some bytes of an allocation, which is shared whole.

    What another process says of it may be wrong: the reader checks it.
    """

    device_id: bytes
    """``ArrayBackend.device_id`` of the device."""
    handle: bytes
    """Handle that opens the allocation; only the backend interprets it."""
    offset: int
    """The first byte, counted from the start of the allocation."""
    length: int
    """How many bytes the elements have."""
