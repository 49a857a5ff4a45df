"""Names for unix sockets that another process can replace.

A socket is bound to a name of its own, ``.NAME.PROCESS``, and then linked to ``NAME``, so that
another one can be linked there later. The system knows it by the first name, clients by the second.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_OWN = re.compile(rb"(.*/)?\.([^/]+)\.[0-9]+")


def own_name(path: Path) -> Path:
    """Return the name of this process's own socket for ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def published_name(path: bytes) -> bytes:
    """Return the name by which clients know a socket; for other sockets, their only name."""
    found = _OWN.fullmatch(path)
    return (found[1] or b"") + found[2] if found else path
