"""How a client says who it is: for listings and logs, never for a decision."""

from __future__ import annotations

import functools
import getpass
import socket

CLIENT_KEY = "opdispatch-client"
"""The metadata of requests that change the registry: ``USER@HOST``."""


@functools.cache
def describe_self() -> str:
    """Return ``USER@HOST`` of this process, in characters that metadata can carry."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container may have a user without a name
    whole = f"{user}@{socket.gethostname()}"
    # A user may be named by LOGNAME: gRPC fails a request whose metadata has anything else.
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in whole)
