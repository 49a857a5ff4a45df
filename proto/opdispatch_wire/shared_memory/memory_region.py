"""Memory that two processes share: one memfd, sealed at its size, passed as a descriptor.

    owner                                           receiver
    OwnedRegion: made, sealed, mapped   ---------   MappedRegion: checked, mapped, closed
                                        descriptor
    ... writes to it, says where ...                ... looks at (offset, length) ...

Note [Sealed before it is seen]
    A page beyond the end of a file ends the process that touches it, with SIGBUS. A memfd that
    is sealed against shrinking has no such page within its size, whatever its owner does, so the
    receiver checks that seal and the size before it maps anything. The seal against growing
    keeps the size what both sides know. Files of other kinds cannot be sealed at all; huge pages
    can, and can run out after they were mapped: they are refused.
"""

from __future__ import annotations

import fcntl
import os
import stat

import numpy as np

from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.shared_mapping import PAGE, SharedMapping

MAX_REGION_BYTES = 1 << 36
"""The largest region that a receiver maps unless told otherwise: 64 GiB."""


class OwnedRegion:
    """A region of this process's own: its descriptor, and a mapping to write through."""

    def __init__(self, size: int) -> None:
        """Make one of ``size`` bytes, which is rounded up to pages. Raises OSError."""
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
        """Allocate memory under an extent before it is written to. Raises OSError.

        Where memory is exhausted, writing to a page that is not there yet ends the process.
        """
        os.posix_fallocate(self.descriptor, offset, length)
        self.mapping.populate(offset, length)

    def close(self) -> None:
        """Close the region; its memory is freed when it is not mapped any more."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            self.__dict__.pop("mapping", None)  # views keep it alive

    def __del__(self) -> None:
        self.close()


class MappedRegion:
    """A region of a peer's, mapped once. See Note [Sealed before it is seen]."""

    def __init__(
        self,
        descriptor: int,
        *,
        writable: bool = False,
        max_bytes: int = MAX_REGION_BYTES,
        at: str = "$",
    ) -> None:
        """Map the region and close ``descriptor``, also on failure.

        Raises WireError, which starts with the place ``at``, if that is no sealed memfd, is
        empty, is larger than ``max_bytes``, or cannot be mapped.
        """
        try:
            self.size = _check_descriptor(descriptor, max_bytes=max_bytes, at=at)
            self.mapping = SharedMapping(descriptor, self.size, writable=writable)
        except OSError as exc:
            raise WireError(f"{at}: the region cannot be mapped ({exc})") from exc
        finally:
            os.close(descriptor)

    def check_bounds(self, offset: int, length: int, *, at: str = "$") -> None:
        """Raise WireError, which starts with the place ``at``, unless the extent lies within."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise WireError(
                f"{at}: {length} bytes from {offset} on do not lie within a region of "
                f"{self.size} bytes"
            )

    def view(self, offset: int, length: int, *, at: str = "$") -> memoryview:
        """Return those bytes, writable if the region is mapped so.

        Raises WireError, as the above.
        """
        self.check_bounds(offset, length, at=at)
        if not length:
            return memoryview(b"")
        window = self.mapping.window(offset, length, writable=self.mapping.writable)
        return window.array((length,), np.dtype(np.uint8)).data


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _check_descriptor(descriptor: int, *, max_bytes: int, at: str) -> int:
    """Return the size of the region. Raises WireError, or OSError if it is no open descriptor."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # asking a device or a pipe for more could wait
        raise WireError(f"{at}: the descriptor is not one of a memfd")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as exc:
        raise WireError(f"{at}: the descriptor is not one of a memfd") from exc
    if missing := _seals() & ~seals:
        raise WireError(
            f"{at}: the memfd is not sealed against {_describe_seals(missing)}; "
            "its pages could vanish while they are read"
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
