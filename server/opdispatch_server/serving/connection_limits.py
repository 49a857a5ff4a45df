"""Limits of connections at ports that strangers reach, until these have said who they are.

A connection takes a descriptor when it is made, and work when it is accepted. Without limits, a
thousand silent ones would take all descriptors of the process, and thousands that wait to be
accepted would be dealt with before the next message of any other connection.
"""

from __future__ import annotations

import os
import socket
from typing import Final
from weakref import WeakSet

from opdispatch_server.serving.address_filter import listening
from opdispatch_wire.channel import server_options

ACCEPT_QUEUE: Final = 128
"""So many connections of a port wait to be accepted. The system has others try again, from a second
later on."""

HANDSHAKE_SECONDS: Final = 10.0
"""After which a connection is closed whose TLS handshake, or first request, is not there yet."""

_MOST_CONNECTIONS = 4096


def most_connections(share: int = 2) -> int:
    """Return how many connections a port may have: those of one descriptor in ``share``."""
    descriptors = os.sysconf("SC_OPEN_MAX")
    return _MOST_CONNECTIONS if descriptors < 0 else min(descriptors // share, _MOST_CONNECTIONS)


def public_server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a gRPC server at ports that strangers reach."""
    return [
        *server_options(max_message_bytes),
        # For each port: a unix socket keeps its own.
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_SECONDS)),
    ]


def shorten_accept_queue(port: int) -> None:
    """Have at most ``ACCEPT_QUEUE`` connections wait at a TCP port that gRPC listens at.

    gRPC lets as many wait as the system allows, 4096, and accepts all of them before it goes on.
    """
    for each in listening(port):
        each.listen(ACCEPT_QUEUE)


class LimitedListener(socket.socket):
    """A TCP socket that closes what it accepts beyond ``most`` open connections."""

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
