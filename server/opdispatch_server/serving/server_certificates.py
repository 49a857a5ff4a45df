"""The certificates of a server's TCP ports, reread when their files change."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import grpc

from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.access")


class TlsError(ValueError):
    """Certificates cannot be used; the message is one sentence."""


class ServerCertificates:
    """A certificate with its key, and the CA of clients, if these need certificates.

    The files are checked at each handshake, by gRPC's threads. Files that cannot be read, or do not
    match yet, change nothing: what was read last stays in force, and the problem is logged once.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files. Raises TlsError."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._lock = threading.Lock()
        self._refused = ""
        try:
            self._signature, self._configuration, self._context = self._read()
        except (OSError, ValueError) as error:
            raise TlsError(f"the certificate {certificate} cannot be used: {error}") from None

    @property
    def asks_clients(self) -> bool:
        """Whether clients need certificates."""
        return self._client_ca is not None

    def credentials(self, on_handshake: Callable[[], None]) -> grpc.ServerCredentials:
        """Return credentials for one port; ``on_handshake`` is called as each begins."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._teller(on_handshake),  # type: ignore[arg-type]  # None means: as before
            require_client_authentication=self.asks_clients,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context for servers other than gRPC's; each handshake uses the current files."""
        outer = self._context

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            self._refreshed()
            connection.context = self._context

        outer.sni_callback = choose
        return outer

    def _teller(
        self, on_handshake: Callable[[], None]
    ) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        given = self._configuration

        def tell() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            on_handshake()
            current = self._refreshed()
            if current is given:
                return None
            given = current
            return current

        return tell

    def _refreshed(self) -> grpc.ServerCertificateConfiguration:
        with self._lock:
            try:
                if self._signatures() != self._signature:
                    self._signature, self._configuration, self._context = self._read()
                    LOG.info(
                        "the certificate %s was read again",
                        self._certificate,
                        extra=fields(Event.CERTIFICATE_READ),
                    )
                self._refused = ""
            except (OSError, ValueError) as error:
                if self._refused != str(error):
                    self._refused = str(error)
                    LOG.warning(
                        "the certificate %s cannot be used, and the one before stays in force: %s",
                        self._certificate,
                        error,
                        extra=fields(Event.CERTIFICATE_REFUSED),
                    )
            return self._configuration

    def _signatures(self) -> tuple[tuple[int, int, int], ...]:
        paths = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        found = [os.stat(path) for path in paths]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _read(
        self,
    ) -> tuple[
        tuple[tuple[int, int, int], ...], grpc.ServerCertificateConfiguration, ssl.SSLContext
    ]:
        before = self._signatures()
        # gRPC accepts anything, and fails handshakes later.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        ca = None
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            ca = self._client_ca.read_bytes()
        pair = self._key.read_bytes(), self._certificate.read_bytes()
        if self._signatures() != before:
            raise ValueError("its files are being written")
        return before, grpc.ssl_server_certificate_configuration([pair], ca), context
