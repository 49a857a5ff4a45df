"""An interpreter's own TCP ports, for direct calls from other machines or other users."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from opdispatch_server.access.route_tickets import TicketAuthentication
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.authentication_interceptor import AuthenticationInterceptor
from opdispatch_server.serving.connection_limits import public_server_options
from opdispatch_server.serving.grpc_services import add_execution_service
from opdispatch_server.serving.listeners import AddressInUseError, Listener, bind
from opdispatch_server.serving.server_certificates import ServerCertificates, TlsError
from opdispatch_server.worker.incoming.kernel_streams import KernelStreams
from opdispatch_wire.addresses import AddressError, TcpAddress
from opdispatch_wire.asyncio_grpc import asyncio_server, start_server
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.v1 import interpreter_pb2

LOG = logging.getLogger("opdispatch.interpreter")


class DirectListener:
    """Serves ``streams`` at the hosts that the daemon names. For use in the event loop only.

    With ``tickets``, only their holders are served. The server certificate is that of
    ``credentials``, or else the daemon's.
    """

    def __init__(
        self,
        streams: KernelStreams,
        limit: int,
        tickets: TicketAuthentication | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._streams = streams
        self._credentials = credentials
        interceptors = [] if tickets is None else [AuthenticationInterceptor(tickets)]
        self._server = asyncio_server(public_server_options(limit), interceptors)
        add_execution_service(self._server, streams)
        self._listeners: list[Listener] = []

    async def listen(self, rules: interpreter_pb2.DirectCallRules) -> list[int]:
        """Listen at the daemon's hosts; return the ports.

        A host without a free port is skipped with a warning: its clients call through the daemon.
        """
        for host in rules.hosts:
            try:
                self._listeners.append(self._bind(host, rules, self._certificates(rules)))
            except (AddressError, OSError, TlsError) as error:
                LOG.warning(
                    "clients at %s can call only through the daemon: %s",
                    host,
                    error,
                    extra=fields(Event.LANE_SLOW),
                )
        if self._listeners:
            await start_server(self._server)
        addresses = [listener.address for listener in self._listeners]
        for address in addresses:
            GUARD.own_listener(address)
        return [int(address.rpartition(":")[2]) for address in addresses]

    async def close(self, patience: float) -> None:
        """End every stream when its replies are written, but after ``patience`` seconds at most."""
        if self._listeners and patience:
            await self._streams.finish(patience)
        await self._server.stop(grace=None)
        for listener in self._listeners:
            listener.close()

    def _certificates(self, rules: interpreter_pb2.DirectCallRules) -> ServerCertificates | None:
        if not rules.tls_cert:
            return None
        own = self._credentials
        cert, key = own.tls_cert or rules.tls_cert, own.tls_key or rules.tls_key
        client_ca = Path(rules.tls_client_ca) if rules.tls_client_ca else None
        return ServerCertificates(Path(cert), Path(key), client_ca)

    def _bind(
        self,
        host: str,
        rules: interpreter_pb2.DirectCallRules,
        tls: ServerCertificates | None,
    ) -> Listener:
        ports: Iterable[int] = range(rules.first_port, rules.last_port + 1)
        for port in ports:
            try:
                # Insecure is allowed: the daemon listens at the same host, and has checked that.
                return bind(self._server, str(TcpAddress(host, port)), insecure=True, tls=tls)
            except AddressInUseError:
                pass  # another interpreter has it
        raise AddressError(
            f"none of the ports {rules.first_port} to {rules.last_port} of {host} is free",
            hint="widen the range: `opdispatch serve --direct-ports FIRST-LAST`",
        )
