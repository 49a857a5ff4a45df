"""A unix socket for several users: each connection has the identity of its user.

gRPC does not report which process is at the other end of a unix socket. So connections are accepted
here, where the system can be asked, and forwarded to a gRPC socket in the daemon's private folder.
Each has a name there, by which gRPC knows its peer, and ``peers`` maps that name to the identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Mapping

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.users import stranger
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.socket_owner import is_trusted, peer_of

LOG = logging.getLogger("opdispatch.access")

MOST_OF_STRANGERS = 16
"""The most open connections of a user without permissions; they only receive refusals."""

_CHUNK = 256 * 1024


class SharedSocket:
    """Forwards connections to the socket at ``inner``. For use in the event loop only."""

    def __init__(
        self, inner: str, users: Mapping[int, Identity], peers: dict[str, Identity]
    ) -> None:
        """Forward connections of ``users``, by user id, adding their names to ``peers``."""
        self._inner = inner
        self._users = users
        self._peers = peers
        # Random, so that no other process has one of these names.
        self._names = map(f"opdispatch-{secrets.token_hex(16)}-{{}}".format, itertools.count(1))
        self._strangers: Counter[int] = Counter()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, listener: socket.socket) -> None:
        """Accept the connections of a listening socket."""
        server = await asyncio.start_unix_server(self._take, sock=listener, limit=_CHUNK)
        self._servers.append(server)

    async def close(self) -> None:
        """Accept no more connections, and end the existing ones. Idempotent."""
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs it in a task"
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # either side has closed, or the daemon stops
        finally:
            self._connections.discard(task)
            _hang_up(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process, user = peer_of(writer.get_extra_info("socket"))
        identity = OWNER if is_trusted(user) else self._users.get(user)
        if identity is not None:
            await self._hand_on(identity, reader, writer)
        elif self._strangers[user] < MOST_OF_STRANGERS:
            self._strangers[user] += 1
            try:
                await self._hand_on(stranger(user), reader, writer)
            finally:
                self._strangers[user] -= 1
        else:
            LOG.warning(
                "a connection of process %d of user %d was refused, who may do nothing here",
                process,
                user,
                extra=fields(Event.CONNECTION_REFUSED),
            )

    async def _hand_on(
        self, identity: Identity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        name = next(self._names)
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            inner.setblocking(False)
            inner.bind(f"\0{name}")
            self._peers[name] = identity  # before gRPC sees the connection
            await asyncio.get_running_loop().sock_connect(inner, self._inner)
            to_reader, to_writer = await asyncio.open_unix_connection(sock=inner, limit=_CHUNK)
            try:
                await _copy_both(reader, writer, to_reader, to_writer)
            finally:
                _hang_up(to_writer)
        finally:
            self._peers.pop(name, None)
            inner.close()


async def _copy_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    to_reader: asyncio.StreamReader,
    to_writer: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until one side ends."""
    copying = {
        asyncio.create_task(_copy(reader, to_writer)),
        asyncio.create_task(_copy(to_reader, writer)),
    }
    try:
        await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in copying:
            each.cancel()
        await asyncio.gather(*copying, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def _hang_up(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
