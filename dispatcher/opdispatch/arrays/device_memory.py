"""Handles of device memory that other processes of the machine can map."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Location of an array's elements: a byte range of an allocation, which is shared as a whole.

    It comes from another process, so the reader must validate it.
    """

    device_id: bytes
    """``ArrayBackend.device_id`` of the device."""
    handle: bytes
    """Handle that opens the allocation; only the backend interprets it."""
    offset: int
    """Offset of the first byte from the start of the allocation."""
    length: int
    """Size of the elements, in bytes."""
