"""Arguments that a schema does not declare as written to cannot be written to."""

from __future__ import annotations

import re

WRITE_HINT = (
    "arguments are read-only unless the schema declares a write: declare it, as in "
    '"Tensor(a!) x", or write to a copy'
)

# What NumPy, memoryviews, ctypes, Cython and Numba say of a write to memory that is read-only.
# There is no class and no attribute for that.
_REFUSAL = re.compile(r"read.?only|WRITEABLE|not writ(e)?able|read-write", re.IGNORECASE)


def hint_of_write(error: BaseException) -> str:
    """Return WRITE_HINT if ``error`` is of a write to an array that is read-only, else ""."""
    if type(error) not in (ValueError, TypeError, BufferError):
        return ""
    return WRITE_HINT if _REFUSAL.search(str(error)) else ""
