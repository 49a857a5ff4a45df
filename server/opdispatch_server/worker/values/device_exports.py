"""Values on a device that another interpreter copies from device memory to device memory.

Note [Reading another process's device memory]
    An interpreter that is asked for a value by another one on the same device answers with its
    address, and a lease: until the lease ends, it keeps the value. The reader copies it, and then
    ends the lease. The copy is valid only if the lease still existed at that time: memory that is
    no longer kept may have been reused unnoticed.

    - The reader dies: the lease ends by itself after PATIENCE seconds.
    - The owner dies: there is no process to ask, and the value has gone with it.
    - The reader cannot open the memory, or is too late: it asks for the elements themselves,
      through host memory, as it does without such a device. It ends the lease even if it has no
      copy.

    An operator that writes to a value does not run meanwhile: see Note [Where a value is].
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from opdispatch.arrays import backend_of_device, find_backend
from opdispatch.errors import DeviceError, DeviceLostError
from opdispatch.tensors.tensor import Tensor
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import RemoteValueGoneError
from opdispatch_wire.v1 import values_pb2

LOG = logging.getLogger("opdispatch.interpreter")

PATIENCE = 60.0
"""Seconds after which a reader counts as gone."""
MOST_LEASES = 256
"""Most leases at a time; values beyond them are sent through host memory."""
LEASE_BYTES = 16


class DeviceExports:
    """The leases of one interpreter. Thread-safe: ``_lock`` guards ``_leases``, oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[bytes, tuple[float, Any]] = {}

    def offer(self, message: values_pb2.Tensor, value: Any, device_id: bytes) -> bool:
        """Offer a value to a process that can read that device.

        Return False if it is not there, cannot be shared, or MOST_LEASES others are leased. Raises
        DeviceLostError.
        """
        array = value.array if isinstance(value, Tensor) else value
        backend = find_backend(type(array))
        if backend is None or find_device_id(backend.device_of(array)) != device_id:
            return False
        self.drop_expired()
        lease = secrets.token_bytes(LEASE_BYTES)
        with self._lock:
            if len(self._leases) >= MOST_LEASES:
                return False
            self._leases[lease] = self._clock() + PATIENCE, array
        try:
            memory = backend.share(array)
        except DeviceLostError:
            raise
        except DeviceError as error:
            LOG.debug(
                "sending a value through host memory: %s", error, extra=fields(Event.VALUE_BY_HOST)
            )
            memory = None
        if memory is None:
            self.drop(lease)
            return False
        there = message.device_memory
        there.device_id, there.handle = memory.device_id, memory.handle
        there.offset, there.length, there.lease = memory.offset, memory.length, lease
        return True

    def end(self, lease: bytes) -> None:
        """End the lease of a reader that has its copy.

        Raises RemoteValueGoneError if the value was not kept until now.
        """
        self.drop_expired()
        if not self.drop(lease):
            raise RemoteValueGoneError(
                f"the value is no longer kept: its lease ended after {PATIENCE:g} s, or never "
                "existed",
                reason="the lease has ended",
            )

    def drop(self, lease: bytes) -> bool:
        """End a lease; return whether it existed."""
        with self._lock:
            return self._leases.pop(lease, None) is not None

    def drop_expired(self) -> None:
        """End the leases of readers that are gone."""
        now = self._clock()
        with self._lock:
            for lease in [each for each, (end, _) in self._leases.items() if end <= now]:
                del self._leases[lease]

    def __len__(self) -> int:
        with self._lock:
            return len(self._leases)


def find_device_id(device: str) -> bytes:
    """Return the identity of a device of this process whose memory can be shared; else b""."""
    if device in ("", "cpu"):
        return b""
    try:
        return backend_of_device(device).device_id(device)
    except DeviceError:
        return b""
