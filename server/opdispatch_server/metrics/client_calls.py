"""The calls of each client, counted where they arrive: by the daemon and each interpreter.

A client is identified by its process where the system vouches for that, at a local lane; otherwise
by its token, or by the address of its machine.
"""

from __future__ import annotations

import functools
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from opdispatch_server.metrics.label_limits import LONGEST_CLIENT, add_calls
from opdispatch_wire.printable import printable_line
from opdispatch_wire.socket_owner import peer_of


class ClientConnection:
    """One connection of a client. Its reader adds to ``calls``, one thread at a time."""

    __slots__ = ("calls", "client")

    def __init__(self, client: str) -> None:
        self.client = client
        self.calls = 0


class ClientCalls:
    """The calls of all clients of this process. ``_lock`` guards connections and past calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[ClientConnection] = set()
        self._past: Counter[str] = Counter()

    def begin(self, client: str) -> ClientConnection:
        """Return the counter of a connection, which ``end`` ends."""
        connection = ClientConnection(printable_line(client)[:LONGEST_CLIENT])
        with self._lock:
            self._connections.add(connection)
        return connection

    def end(self, connection: ClientConnection) -> None:
        """Keep the connection's calls in the sum. Idempotent."""
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
                if connection.calls:
                    add_calls(self._past, connection.client, connection.calls)

    def read(self) -> dict[str, int]:
        """Return how many calls each client has sent, including past connections."""
        with self._lock:
            found = Counter(self._past)
            connections = list(self._connections)
        for connection in connections:
            if connection.calls:
                add_calls(found, connection.client, connection.calls)
        return dict(found)


def sum_calls(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return the sums of several counts."""
    total: Counter[str] = Counter()
    for each in counts:
        for client, calls in each.items():
            add_calls(total, client, calls)
    return total


def local_client(connection: socket.socket) -> str:
    """Return the name of the client at the other end of a unix socket: ``python[4711]``."""
    process, _ = peer_of(connection)
    name = "process"
    with suppress(OSError):  # it may have ended, or be in another namespace
        name = Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    return f"{name}[{process}]"


def remote_client(identity: str, peer: str) -> str:
    """Return the name of a gRPC stream's client, whose ``peer`` is as gRPC names it."""
    if identity:
        return identity
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer


@functools.cache
def process_client_calls() -> ClientCalls:
    """Return this process's counters, created on first use: not before the process is forked."""
    return ClientCalls()
