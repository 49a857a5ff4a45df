"""Unix sockets that only processes of one user can connect to."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from opdispatch_wire.errors import RefusedError
from opdispatch_wire.socket_owner import is_trusted, peer_of

_BACKLOG = 128
# Enough for a burst of small calls, and to write a large one in few steps.
_BUFFER_BYTES = 1024 * 1024


def listen(path: str) -> socket.socket:
    """Return a non-blocking socket that listens at ``path``, with mode 0600.

    Replaces the socket of a process that was killed. Raises OSError, also if another process
    listens there.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # With the umask, the file is created with its final mode, so others can never connect.
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(path: str, timeout: float) -> socket.socket:
    """Return a connection to the socket at ``path``, within ``timeout`` seconds.

    Raises OSError, and RefusedError if a process of another user listens there: the folder may be
    writable for others.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
        check_peer(connection, path)
        widen(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_peer(connection: socket.socket, path: str) -> None:
    """Raise RefusedError unless the other side is a process of our own user or root."""
    pid, user = peer_of(connection)
    if not is_trusted(user):
        raise RefusedError(
            f"process {pid} at the other end of the lane at {path} belongs to user {user}; "
            f"expected user {os.geteuid()} or root"
        )


def widen(connection: socket.socket) -> None:
    """Set the connection's buffer sizes."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _remove_stale(path: str) -> None:
    """Remove a socket without a listener. No other process can race: the folder is private."""
    if is_socket(path):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                Path(path).unlink(missing_ok=True)


def is_socket(path: str) -> bool:
    """Return whether there is a socket at ``path``; False if the path is not accessible."""
    try:
        return Path(path).is_socket()
    except OSError:
        return False
