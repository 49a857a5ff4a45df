"""A unix socket for several users: who is at the other end of each connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.serving import shared_socket
from opdispatch_server.serving.shared_socket import MOST_OF_STRANGERS, SharedSocket
from tests.waits import LONGEST_WAIT


class Inner:
    """Listen in the private folder, echo, and note the peers' identities."""

    def __init__(self, peers: dict[str, Identity]) -> None:
        self.peers = peers
        self.identities: list[Identity] = []
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        name = writer.get_extra_info("peername").decode().removeprefix("\0")
        self.identities.append(self.peers[name])
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
        self.open -= 1


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[Inner]:
    inner = Inner({})
    server = await asyncio.start_unix_server(inner.serve, tmp_path / "inner")
    yield inner
    server.close()


async def shared_at(
    tmp_path: Path, inner: Inner, users: dict[int, Identity] | None = None
) -> SharedSocket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "outer"))
    listener.listen()
    shared = SharedSocket(str(tmp_path / "inner"), users or {}, inner.peers)
    await shared.listen(listener)
    return shared


async def test_bytes_go_both_ways_under_the_peers_identity(tmp_path: Path, inner: Inner):
    shared = await shared_at(tmp_path, inner)
    reader, writer = await asyncio.open_unix_connection(tmp_path / "outer")
    sent = os.urandom(3_000_000)
    writer.write(sent)
    async with asyncio.timeout(LONGEST_WAIT):
        assert await reader.readexactly(len(sent)) == sent
    assert inner.identities == [OWNER]
    assert len(inner.peers) == 1
    writer.close()
    async with asyncio.timeout(LONGEST_WAIT):
        while inner.peers or inner.open:
            await asyncio.sleep(0.01)
    await shared.close()


async def test_connection_of_another_user_has_the_identity_of_its_peer(
    tmp_path: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
):
    alice = Identity("user alice", Role.CALL)
    monkeypatch.setattr(shared_socket, "is_trusted", lambda user: False)
    monkeypatch.setattr(shared_socket, "peer_of", lambda connection: (1, 4242))
    shared = await shared_at(tmp_path, inner, {4242: alice})
    reader, writer = await asyncio.open_unix_connection(tmp_path / "outer")
    writer.write(b"x")
    async with asyncio.timeout(LONGEST_WAIT):
        assert await reader.readexactly(1) == b"x"
    assert inner.identities == [alice]
    await shared.close()
    async with asyncio.timeout(LONGEST_WAIT):
        assert await reader.read() == b""
    assert not inner.peers
    writer.close()


async def test_a_stranger_has_few_connections_and_no_role(
    tmp_path: Path, inner: Inner, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_socket, "is_trusted", lambda user: False)
    monkeypatch.setattr(shared_socket, "peer_of", lambda connection: (1, 4242))
    shared = await shared_at(tmp_path, inner)
    opened = [
        await asyncio.open_unix_connection(tmp_path / "outer") for _ in range(MOST_OF_STRANGERS)
    ]
    for reader, writer in opened:
        writer.write(b"x")
        async with asyncio.timeout(LONGEST_WAIT):
            assert await reader.readexactly(1) == b"x"
    assert {each.role for each in inner.identities} == {Role.NONE}
    reader, writer = await asyncio.open_unix_connection(tmp_path / "outer")
    async with asyncio.timeout(LONGEST_WAIT):
        assert await reader.read() == b""
    for _, each in [*opened, (reader, writer)]:
        each.close()
    await shared.close()
