"""Map errors for exhausted resources (descriptors, memory, disk, threads) to ResourceLimitError."""

from __future__ import annotations

import errno

from opdispatch.errors import OpdispatchError
from opdispatch_wire.errors import ResourceLimitError

_RESOURCES = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "files that the system may have open",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "buffers for sockets",
    errno.ENOSPC: "space on its disk",
    errno.EDQUOT: "disk quota",
}


def find_resource_limit(error: BaseException) -> ResourceLimitError | None:
    """Return a ResourceLimitError if ``error`` means that this process is out of a resource.

    Otherwise return None. Errors of our own return None, too: they may be those of a kernel, which
    say nothing of this process.
    """
    if isinstance(error, OpdispatchError):
        return None
    if isinstance(error, OSError) and error.errno in _RESOURCES:
        resource, why = _RESOURCES[error.errno], error.strerror or "refused"
    elif type(error) is MemoryError:
        resource, why = "memory", str(error) or "refused"
    elif isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        resource, why = "threads", str(error)
    else:
        return None
    return ResourceLimitError(
        f"the serving process has no {resource} left: {why}",
        hint="raise the limit, or find out what uses it up; the log has the traceback",
        resource=resource,
    )
