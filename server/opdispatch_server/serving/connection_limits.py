"""Limits on connections from unauthenticated peers at public ports.

A connection takes a descriptor when it is made, and time when it is accepted. Without limits, a
thousand silent connections would use up the process's descriptors, and thousands in the accept
queue would be processed before the next message of any other connection.
"""

from __future__ import annotations

import os
import socket
from typing import Final
from weakref import WeakSet

from opdispatch_server.serving.address_filter import listening
from opdispatch_wire.channel import server_options

ACCEPT_QUEUE: Final = 128
"""The backlog of a port: connections that may wait to be accepted.

The system drops further ones; their peers retry, first after one second.
"""

HANDSHAKE_SECONDS: Final = 10.0
"""A connection without a completed TLS handshake or a first request is closed after this time."""

_MOST_CONNECTIONS = 4096


def most_connections(share: int = 2) -> int:
    """Return the connection limit of a port: one ``share``-th of the process's descriptors."""
    descriptors = os.sysconf("SC_OPEN_MAX")
    return _MOST_CONNECTIONS if descriptors < 0 else min(descriptors // share, _MOST_CONNECTIONS)


def public_server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a gRPC server at public ports."""
    return [
        *server_options(max_message_bytes),
        # For each port; a unix socket has its own.
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
    ]


def shorten_accept_queue(port: int) -> None:
    """Limit the accept queue of gRPC's TCP port to ``ACCEPT_QUEUE`` connections.

    gRPC lets as many wait as the system allows, 4096, and accepts all of them before it does
    anything else.
    """
    for each in listening(port):
        each.listen(ACCEPT_QUEUE)


class LimitedListener(socket.socket):
    """A TCP socket that closes accepted connections beyond ``most`` open ones."""

    def __init__(self, family: int, kind: int, *, most: int) -> None:
        super().__init__(family, kind)
        self._most = most
        self._accepted: WeakSet[socket.socket] = WeakSet()

    def accept(self) -> tuple[socket.socket, object]:
        """Return a connection. Raises ConnectionAbortedError if there are too many."""
        connection, address = super().accept()
        if sum(each.fileno() >= 0 for each in self._accepted) >= self._most:
            connection.close()
            raise ConnectionAbortedError("too many connections")
        self._accepted.add(connection)
        return connection, address
