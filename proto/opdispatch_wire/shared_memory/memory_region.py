"""Memory that two processes share: one memfd, sealed at its size, passed as a descriptor.

    owner                                           receiver
    OwnedRegion: made, sealed, mapped   ---------   MappedRegion: checked, mapped, closed
                                        descriptor
    ... writes to it, sends the place ...           ... reads (offset, length) ...

Note [Sealed before it is seen]
    Touching a page beyond the end of a file ends a process with SIGBUS. A memfd that is sealed
    against shrinking always has all pages within its size, whatever its owner does, so the receiver
    checks that seal and the size before it maps anything. The seal against growing keeps the size
    that both sides know. Other kinds of files cannot be sealed. Huge pages can be, but they can run
    out after they were mapped, so they are refused.
"""

from __future__ import annotations

import fcntl
import os
import stat

import numpy as np

from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.shared_mapping import PAGE, SharedMapping

MAX_REGION_BYTES = 1 << 36
"""Largest region in bytes that a receiver maps by default: 64 GiB."""


class OwnedRegion:
    """A region that this process owns: its descriptor, and a writable mapping."""

    def __init__(self, size: int) -> None:
        """Create a region of ``size`` bytes, rounded up to whole pages. Raises OSError."""
        self.size = -(-size // PAGE) * PAGE
        self.descriptor = -1
        self.descriptor = os.memfd_create("opdispatch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _seals())
            self.mapping = SharedMapping(self.descriptor, self.size, writable=True)
        except BaseException:
            self.close()
            raise

    def prepare(self, offset: int, length: int) -> None:
        """Allocate memory for an extent before it is written to. Raises OSError.

        Without this, writing to a missing page while memory is exhausted would end the process.
        """
        os.posix_fallocate(self.descriptor, offset, length)
        self.mapping.populate(offset, length)

    def close(self) -> None:
        """Close the region; its memory is freed once no process maps it any more. Idempotent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self.__dict__.pop("mapping", None)  # views keep it alive

    def __del__(self) -> None:
        self.close()


class MappedRegion:
    """A region that a peer owns, mapped once. See Note [Sealed before it is seen]."""

    def __init__(
        self,
        descriptor: int,
        *,
        writable: bool = False,
        max_bytes: int = MAX_REGION_BYTES,
        at: str = "$",
    ) -> None:
        """Map the region and close ``descriptor``, also on failure.

        Raises WireError, whose message starts with the place ``at``, if the descriptor is not that
        of a sealed memfd of 1 to ``max_bytes`` bytes, or cannot be mapped.
        """
        try:
            self.size = _check_descriptor(descriptor, max_bytes=max_bytes, at=at)
            self.mapping = SharedMapping(descriptor, self.size, writable=writable)
        except OSError as exc:
            raise WireError(f"{at}: cannot map the region ({exc})") from exc
        finally:
            os.close(descriptor)

    def check_bounds(self, offset: int, length: int, *, at: str = "$") -> None:
        """Raise WireError, whose message starts with ``at``, if the extent exceeds the region."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise WireError(
                f"{at}: {length} bytes at offset {offset} exceed the region of {self.size} bytes"
            )

    def view(self, offset: int, length: int, *, at: str = "$") -> memoryview:
        """Return a view of an extent, writable if the mapping is.

        Raises WireError as ``check_bounds`` does.
        """
        self.check_bounds(offset, length, at=at)
        if not length:
            return memoryview(b"")
        window = self.mapping.window(offset, length, writable=self.mapping.writable)
        return window.array((length,), np.dtype(np.uint8)).data


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _check_descriptor(descriptor: int, *, max_bytes: int, at: str) -> int:
    """Return the size of the region. Raises WireError, or OSError if the descriptor is not open."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # further calls could block on a device or a pipe
        raise WireError(f"{at}: the descriptor is not that of a memfd")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as exc:
        raise WireError(f"{at}: the descriptor is not that of a memfd") from exc
    if missing := _seals() & ~seals:
        raise WireError(
            f"{at}: the memfd is not sealed against {_describe_seals(missing)}; "
            "its pages could disappear while they are read"
        )
    if os.fstatvfs(descriptor).f_bsize != PAGE:
        raise WireError(f"{at}: the memfd consists of huge pages; expected pages of {PAGE} bytes")
    if not 0 < status.st_size <= max_bytes:
        raise WireError(f"{at}: the region has {status.st_size} bytes; expected 1 to {max_bytes}")
    return status.st_size


def _describe_seals(seals: int) -> str:
    names = {
        fcntl.F_SEAL_SHRINK: "shrinking",
        fcntl.F_SEAL_GROW: "growing",
        fcntl.F_SEAL_SEAL: "further seals",
    }
    return " and ".join(text for seal, text in names.items() if seals & seal)
