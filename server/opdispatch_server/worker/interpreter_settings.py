"""The settings of an interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from opdispatch_server.serving.server_certificates import ServerCertificates, TlsError
from opdispatch_wire.addresses import (
    AddressError,
    TcpAddress,
    is_loopback,
    parse_address,
)
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials


class InterpreterSettings(NamedTuple):
    """The settings of an interpreter. Without a ``name`` the daemon chooses one.

    ``max_message_bytes`` is the daemon's limit for clients.
    """

    daemon: str
    listen: str
    max_message_bytes: int
    name: str = ""
    insecure: bool = False
    lane: str = ""
    """The path of its local lane for the daemon's calls; empty: none."""
    direct_lane: str = ""
    """The path of its local lane for clients' calls."""
    device: str = ""
    """The device that its kernels use besides the CPU; empty: all that exist."""
    cache: Path | None = None
    """Where it stores uploads of a daemon whose files it cannot read; None: the user's cache."""
    credentials: Credentials = NO_CREDENTIALS
    """The credentials for connecting to the daemon."""

    @property
    def has_own_port(self) -> bool:
        """Whether it listens at a port itself, for the daemon and other interpreters."""
        return isinstance(parse_address(self.listen), TcpAddress)

    @property
    def asks_at_own_port(self) -> bool:
        """Whether it requires tickets there, because it can send the daemon their key securely."""
        is_unheard = is_loopback(self.daemon) or bool(
            self.credentials.tls_ca or self.credentials.pin
        )
        return self.has_own_port and is_unheard

    def own_certificates(self) -> ServerCertificates | None:
        """Return the certificates of that port; None without TLS. Raises AddressError."""
        own = self.credentials
        if not self.has_own_port or not own.tls_cert:
            return None
        try:
            ca = Path(own.tls_ca) if own.tls_ca else None
            return ServerCertificates(Path(own.tls_cert), Path(own.tls_key), ca)
        except TlsError as error:
            raise AddressError(f"{self.listen}: {error}") from None
