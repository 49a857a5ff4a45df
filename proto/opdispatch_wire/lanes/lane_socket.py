"""Unix sockets that only processes of one user can use."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from opdispatch_wire.errors import RefusedError
from opdispatch_wire.socket_owner import is_trusted, peer_of

_BACKLOG = 128
# Room for a burst of small calls, and for a large one to be written in few steps.
_BUFFER_BYTES = 1024 * 1024


def listen(path: str) -> socket.socket:
    """Return a socket that listens at ``path``, with mode 0600.

    Raises OSError, also if another one does.

    The socket of a process that was killed is replaced.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # The file appears with its final mode: there is no moment in which others could connect.
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
    """Return a connection to the socket at ``path``, of our own user or root.

    Raises OSError and RefusedError. A socket at a path that others may write to could be anyone's.
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
    """Raise RefusedError unless the other side is a process of our own user, or root's."""
    pid, user = peer_of(connection)
    if not is_trusted(user):
        raise RefusedError(
            f"the lane at {path} is for processes of user {os.geteuid()}, and process {pid} is "
            f"user {user}'s"
        )


def widen(connection: socket.socket) -> None:
    """Set buffers of the connection that hold many small calls."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _remove_stale(path: str) -> None:
    """Remove a socket without a listener. The folder is private: no other process is quicker."""
    if is_socket(path):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                Path(path).unlink(missing_ok=True)


def is_socket(path: str) -> bool:
    """Return whether a socket is there, as far as we may see."""
    try:
        return Path(path).is_socket()
    except OSError:
        return False
