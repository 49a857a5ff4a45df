"""The thread that serves HTTP, so that a slow reader blocks no call."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from opdispatch_server.serving.connection_limits import (
    ACCEPT_QUEUE,
    HANDSHAKE_SECONDS,
    LimitedListener,
    most_connections,
)
from opdispatch_server.serving.listeners import AddressInUseError
from opdispatch_wire.addresses import AddressError, TcpAddress, parse_address

# Open pages and scrapes together.
_CONNECTIONS = 512
_GRACE = 1
_START_TIMEOUT = 10.0


def bind_http(address: str, *, insecure: bool, take_over: bool = False) -> socket.socket:
    """Return a socket that listens at ``HOST:PORT``.

    Raises AddressError for an address that is malformed, or reachable from other machines, unless
    it is ``insecure`` or has TLS and tokens; and AddressInUseError, unless it may ``take_over`` the
    address of a daemon.
    """
    parsed = parse_address(address)
    if not isinstance(parsed, TcpAddress):
        raise AddressError(f"--http takes HOST:PORT, and {address} is not one")
    if not parsed.is_loopback and not insecure:
        raise AddressError(
            f"{parsed} can be reached from other machines, which would read names and errors of "
            "all libraries",
            hint="give --tls-cert, --tls-key and --tokens, or listen on 127.0.0.1, or add "
            "--insecure",
        )
    info = socket.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)[0]
    found = LimitedListener(info[0], info[1], most=min(most_connections(8), _CONNECTIONS))
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not take_over:
            with socket.socket(info[0], info[1]) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(info[4])
        # So that another daemon can take over the address.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(info[4])
        found.listen(ACCEPT_QUEUE)
    except OSError as error:
        found.close()
        raise AddressInUseError(
            f"cannot serve HTTP at {parsed}: {error.strerror}; give --http another address"
        ) from error
    return found


def url_of(listening: socket.socket, *, has_tls: bool = False) -> str:
    """Return the URL for browsers."""
    host, port = listening.getsockname()[:2]
    return f"http{'s' * has_tls}://{f'[{host}]' if ':' in host else host}:{port}/"


def hosts_of(listening: socket.socket) -> list[str]:
    """Return the names under which it accepts requests."""
    host = listening.getsockname()[0]
    if host in ("127.0.0.1", "::1"):
        return ["localhost", "127.0.0.1", "[::1]"]
    return ["*"]


class _Connection(H11Protocol):
    """A connection that is closed if its next request does not arrive, or does not end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._look(...)

    def _look(self, seen: object) -> None:
        """Close the connection if it has been idle since the previous check."""
        if self.transport.is_closing():
            return
        is_idle = getattr(self.cycle, "response_complete", True)  # None before the first request
        if is_idle and seen is self.cycle:
            self.transport.close()
            return
        self.loop.call_later(HANDSHAKE_SECONDS, self._look, self.cycle)


class HttpServer:
    """Serves one application until it is stopped. ``loop`` is its thread's own, once it runs."""

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._socket = listening
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self, app: ASGIApp) -> None:
        """Start to serve."""
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
        )
        config.load()
        config.ssl = self._tls
        self._server = uvicorn.Server(config)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._server, started), name="http", daemon=True
        )
        self._thread.start()
        started.wait(_START_TIMEOUT)

    def _run(self, server: uvicorn.Server, started: threading.Event) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            started.set()
            await server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def stop(self) -> None:
        """End all connections, and wait until they have ended. Blocks for up to two seconds."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(2 * _GRACE)
        self._socket.close()
