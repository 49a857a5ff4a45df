"""How long a test waits for what must come, however busy the machine is."""

from __future__ import annotations

import socket

LONGEST_WAIT = 60.0
"""In seconds. Only a test that fails ever waits for so long: the limit is there to name it."""


def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection to `listener`.

    Raises `TimeoutError` where none comes, or where the connection then stays silent for as long.
    """
    listener.settimeout(LONGEST_WAIT)
    connection, _ = listener.accept()
    connection.settimeout(LONGEST_WAIT)
    return connection
