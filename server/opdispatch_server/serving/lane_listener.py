"""Accepts the connections of a local lane."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.lanes import lane_socket

LOG = logging.getLogger("opdispatch.lane")

# How long new connections wait in the system when no descriptors are left, in seconds.
_EXHAUSTED_WAIT = 0.5

CONNECTIONS_PER_TURN = 16
"""Connections accepted per step, so that a connecting client does not block other work."""


class LaneListener:
    """Listens at ``path`` and gives each connection of the same user to ``on_connection``.

    For use in the event loop only. The constructor raises OSError if it cannot listen there.
    """

    def __init__(self, path: str, on_connection: Callable[[socket.socket], None]) -> None:
        self.path = path
        self._on_connection = on_connection
        self._loop = asyncio.get_running_loop()
        self._socket = lane_socket.listen(path)
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Accept no more connections; existing ones stay open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(OSError):
            Path(self.path).unlink(missing_ok=True)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(CONNECTIONS_PER_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                LOG.error(
                    "no connection can be taken at %s: %s",
                    self.path,
                    error,
                    extra=fields(Event.CONNECTION_REFUSED),
                )
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_EXHAUSTED_WAIT, self._listen)
                return
            try:
                lane_socket.check_peer(connection, self.path)
                lane_socket.widen(connection)
            except (RefusedError, OSError) as error:
                LOG.warning(
                    "a connection was refused: %s", error, extra=fields(Event.CONNECTION_REFUSED)
                )
                connection.close()
                continue
            self._on_connection(connection)
