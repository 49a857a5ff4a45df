"""How a client identifies itself: for listings and logs, never for a decision."""

from __future__ import annotations

import functools
import getpass
import socket

CLIENT_KEY = "opdispatch-client"
"""The metadata key of requests that change the registry: ``USER@HOST``."""


@functools.cache
def describe_self() -> str:
    """Return ``USER@HOST`` of this process, in characters that metadata permits."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # in a container, the user may have no name
    whole = f"{user}@{socket.gethostname()}"
    # LOGNAME may contain any text, and gRPC fails a request whose metadata has other characters.
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in whole)
