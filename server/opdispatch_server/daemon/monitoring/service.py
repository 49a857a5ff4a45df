"""The HTTP side of one daemon, assembled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.identity import Identity
from opdispatch_server.daemon.monitoring.exposition import Exposition
from opdispatch_server.daemon.monitoring.facts import DaemonReader
from opdispatch_server.daemon.monitoring.live import LiveEvents
from opdispatch_server.daemon.monitoring.page_calls import FindRunner, OwnerSecret, PageCalls
from opdispatch_server.daemon.monitoring.pages import page_routes
from opdispatch_server.daemon.monitoring.routes import make_app
from opdispatch_server.daemon.monitoring.server import HttpServer, bind_http, hosts_of, url_of
from opdispatch_server.serving.server_certificates import ServerCertificates

# Reading over HTTP needs the role that this method needs.
_METHOD = "/opdispatch.v1.RegistryService/ListOperators"


class Monitoring:
    """The metrics, probes and page of a daemon.

    ``compat`` names a product whose names metrics also get.
    """

    def __init__(
        self,
        reader: DaemonReader,
        authentication: Authentication,
        compat: str | None,
        find_runner: FindRunner,
        secret_file: Path,
        tls: ServerCertificates | None = None,
    ) -> None:
        """Take ``secret_file``, created if there are no tokens: see Note [Calls from a page]."""
        self._tls = tls
        self._reader = reader
        self._authentication = authentication
        self._compat = compat
        self._find_runner = find_runner
        self._secret_file = secret_file
        self._server: HttpServer | None = None
        self._live: LiveEvents | None = None

    def start(self, address: str, *, insecure: bool, take_over: bool = False) -> str:
        """Start to serve; return the URL. Raises AddressError and AddressInUseError."""
        is_guarded = self._tls is not None and self._authentication.has_tokens
        listening = bind_http(address, insecure=insecure or is_guarded, take_over=take_over)
        exposition = Exposition(self._reader.read, compat=self._compat)
        tls = None if self._tls is None else self._tls.ssl_context()
        self._server = HttpServer(listening, tls)
        routes, self._live = page_routes(self._reader)
        secret = None if self._authentication.has_tokens else OwnerSecret(self._secret_file)
        calls = PageCalls(self._reader, self._authentication, secret, self._find_runner)
        routes.append(calls.route)
        hosts = hosts_of(listening)
        self._server.start(make_app(self._reader, exposition, self._identify, hosts, routes))
        return url_of(listening, has_tls=self._tls is not None)

    def _identify(self, peer: str, authorization: str) -> Identity:
        return self._authentication.identify(_METHOD, peer, authorization)

    def stop(self) -> None:
        """Stop serving. Blocks for up to two seconds; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            if server.loop is not None and self._live is not None:
                asyncio.run_coroutine_threadsafe(self._live.stop(), server.loop)
            server.stop()
