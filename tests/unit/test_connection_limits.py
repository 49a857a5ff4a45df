"""Limits of connections: how many, for how long silent, how many waiting."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from opdispatch_server.daemon.monitoring import server as http_server
from opdispatch_server.daemon.monitoring.server import HttpServer, bind_http
from opdispatch_server.serving import connection_limits, handshake_pace, listeners
from opdispatch_server.serving.connection_limits import (
    LimitedListener,
    most_connections,
    public_server_options,
    shorten_accept_queue,
)
from opdispatch_server.serving.handshake_pace import HandshakePace
from opdispatch_server.serving.listeners import bind
from opdispatch_server.serving.server_certificates import ServerCertificates
from opdispatch_wire.asyncio_grpc import asyncio_server
from tests.service.certificates import Certificates
from tests.waits import LONGEST_WAIT, accept

LOOPBACK = ("127.0.0.1", 0)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LONGEST_WAIT)


@pytest.mark.parametrize(("descriptors", "most"), [(1024, 512), (100_000, 4096), (-1, 4096)])
def test_a_port_may_have_half_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, most: int
):
    monkeypatch.setattr(os, "sysconf", lambda name: descriptors)
    assert most_connections() == most


def test_queue_of_a_listening_port_is_shortened_and_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_limits, "ACCEPT_QUEUE", 2)
    with socket.socket() as shortened, socket.socket() as other:
        for each in (shortened, other):
            each.bind(LOOPBACK)
            each.listen(100)
        shorten_accept_queue(shortened.getsockname()[1])
        assert [_count_waiting(each, 20) for each in (shortened, other)] == [3, 20]


def _count_waiting(listener: socket.socket, tries: int) -> int:
    """Return how many of so many connections are made while none is accepted."""
    clients = [socket.socket() for _ in range(tries)]
    try:
        for each in clients:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        return sum(_is_connected(each) for each in clients)
    finally:
        for each in clients:
            each.close()


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True


def test_listener_closes_what_is_beyond_its_limit_until_another_has_ended():
    with LimitedListener(socket.AF_INET, socket.SOCK_STREAM, most=1) as listener:
        listener.bind(LOOPBACK)
        listener.listen()
        port = listener.getsockname()[1]
        with connect(port):
            first = accept(listener)
            with connect(port) as second:
                with pytest.raises(ConnectionAbortedError):
                    accept(listener)
                assert second.recv(1) == b""
        first.close()
        with connect(port):
            accept(listener).close()


@pytest.mark.parametrize("has_tls", [False, True])
def test_grpc_port_refuses_connections_beyond_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_tls: bool
):
    monkeypatch.setattr(connection_limits, "_MOST_CONNECTIONS", 1)

    def check(port: int) -> None:
        with connect(port) as first:
            for _ in range(3):
                with connect(port) as another:
                    assert _rest(another) == b""
            first.setblocking(False)
            assert _is_open(first)

    asyncio.run(_serve(check, _certificates(tmp_path) if has_tls else None))


@pytest.mark.parametrize("has_tls", [False, True])
def test_grpc_port_closes_silent_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_tls: bool
):
    monkeypatch.setattr(connection_limits, "HANDSHAKE_SECONDS", 0.2)

    def check(port: int) -> None:
        with connect(port) as silent:
            _rest(silent)  # it ends

    asyncio.run(_serve(check, _certificates(tmp_path) if has_tls else None))


def test_grpc_port_is_shut_for_a_moment_by_too_many_handshakes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    later: list[Callable[[], None]] = []
    now = [0.0]
    pace = functools.partial(HandshakePace, clock=lambda: now[0])
    monkeypatch.setattr(listeners, "HandshakePace", pace)
    monkeypatch.setattr(handshake_pace, "AT_ONCE", 2)
    monkeypatch.setattr(handshake_pace, "HANDSHAKES_PER_CHECK", 1)
    monkeypatch.setattr(handshake_pace, "PER_SECOND", 1e-3)  # none while this test runs
    monkeypatch.setattr(handshake_pace, "LONGEST", 1e6)
    monkeypatch.setattr(handshake_pace, "_call_later", lambda seconds, call: later.append(call))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    def check(port: int) -> None:
        with contextlib.ExitStack() as kept:
            for _ in range(4):
                plain = kept.enter_context(connect(port))
                kept.enter_context(context.wrap_socket(plain))
            with socket.socket() as another:
                another.setblocking(False)
                another.connect_ex(("127.0.0.1", port))
                assert not _is_connected(another)
                [open_again] = later
                now[0] += 1e6  # the longest time that a port is shut
                open_again()
                # The system tries again.
                assert select.select([], [another], [], LONGEST_WAIT)[1]
                assert _is_connected(another)

    asyncio.run(_serve(check, _certificates(tmp_path)))


def _certificates(folder: Path) -> ServerCertificates:
    serve = Certificates(folder / "certs").serve
    return ServerCertificates(Path(serve[1]), Path(serve[3]), None)


async def _serve(check: Callable[[int], None], tls: ServerCertificates | None) -> None:
    server = asyncio_server(public_server_options(2**20))
    listener = bind(server, "127.0.0.1:0", insecure=True, tls=tls)
    await server.start()
    try:
        await asyncio.to_thread(check, int(listener.address.rpartition(":")[2]))
    finally:
        await server.stop(None)


def _is_open(connection: socket.socket) -> bool:
    """Return whether the other end has not closed it; it must not block."""
    try:
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True


def _rest(connection: socket.socket) -> bytes:
    """Return all that comes until the other end closes the connection."""
    data = b""
    while more := connection.recv(4096):
        data += more
    return data


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
    ],
    ids=["nothing", "half a request", "a request and a half"],
)
def test_http_connection_without_a_whole_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
):
    async def answer(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body"})  # type: ignore[operator]

    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.2)
    listening = bind_http("127.0.0.1:0", insecure=True)
    server = HttpServer(listening)
    server.start(answer)
    try:
        with connect(listening.getsockname()[1]) as client:
            client.sendall(sent)
            _rest(client)  # it ends
    finally:
        server.stop()
