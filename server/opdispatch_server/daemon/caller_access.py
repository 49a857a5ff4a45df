"""Authentication of callers: tokens, users of this machine, and TLS."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.token_file import TokenFile
from opdispatch_server.access.users import parse_users
from opdispatch_server.daemon_configuration import DaemonConfiguration
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.serving.server_certificates import ServerCertificates, TlsError
from opdispatch_server.serving.shared_socket import SharedSocket
from opdispatch_wire.credentials import Credentials


class CallerAccess:
    """Authentication, certificates and shared sockets, each created on first access."""

    def __init__(self, configuration: DaemonConfiguration, folder: RunFolder) -> None:
        self._configuration = configuration
        self._folder = folder
        self._peers: dict[str, Identity] = {}

    @cached_property
    def authentication(self) -> Authentication:
        """The authentication of callers.

        Raises OSError, and TokensError for a malformed token file.
        """
        path = self._configuration.tokens
        tokens = None if path is None else TokenFile(path)
        return Authentication(tokens, self._peers if self._configuration.allow_users else None)

    @cached_property
    def shared_socket(self) -> SharedSocket:
        """The unix sockets for clients, which other users may use if the configuration says so."""
        users = parse_users(self._configuration.allow_users)
        return SharedSocket(str(self._folder.path / "users.sock"), users, self._peers)

    @property
    def is_secured(self) -> bool:
        """Whether TCP ports require tokens or TLS."""
        return self.authentication.has_tokens or self.tls is not None

    @cached_property
    def tls(self) -> ServerCertificates | None:
        """The certificates of the TCP ports; None without TLS. Raises TlsError."""
        cert, key = self._configuration.tls_cert, self._configuration.tls_key
        client_ca = self._configuration.tls_client_ca
        if cert is None and key is None and client_ca is None:
            return None
        if cert is None or key is None:
            raise TlsError("TLS needs a certificate and its key: --tls-cert and --tls-key")
        return ServerCertificates(cert, key, client_ca)

    @property
    def own_credentials(self) -> Credentials:
        """The daemon's certificate as a client's, for calling interpreters over TLS."""
        return Credentials(
            tls_ca=absolute(self._configuration.tls_client_ca),
            tls_cert=absolute(self._configuration.tls_cert),
            tls_key=absolute(self._configuration.tls_key),
        )


def absolute(path: Path | None) -> str:
    """Return the absolute path, because interpreters may run in another folder; "" for None."""
    return "" if path is None else str(path.absolute())
