"""How long a test waits for what must come, however busy the machine is."""

from __future__ import annotations

import socket
from typing import Protocol

LONGEST_WAIT = 60.0
"""In seconds. Only a test that fails ever waits for so long: the limit is there to name it."""


class Joinable(Protocol):
    """A thread or a process."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""


def join(running: Joinable, seconds: float = LONGEST_WAIT) -> None:
    """Wait for the end of a thread or a process. Raises `TimeoutError` where it does not end."""
    running.join(seconds)
    if running.is_alive():
        raise TimeoutError(f"{running} has not ended after {seconds} s")


def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection to `listener`.

    Raises `TimeoutError` where none comes, or where the connection then stays silent for as long.
    """
    listener.settimeout(LONGEST_WAIT)
    connection, _ = listener.accept()
    connection.settimeout(LONGEST_WAIT)
    return connection
