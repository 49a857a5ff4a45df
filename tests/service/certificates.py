"""Certificates for tests: a CA, and what it issues, as files."""

from __future__ import annotations

from pathlib import Path

from opdispatch_server.access.certificate_authority import issue, make_authority, write_pair

HOSTS = ("127.0.0.1", "::1", "localhost")


class Certificates:
    """A certificate authority in a folder, with a certificate of a server and one of a client."""

    def __init__(self, folder: Path, name: str = "opdispatch CA") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = make_authority(name, 30)
        write_pair(folder, "ca", self.authority)
        self.issue_server()
        self.issue_client()

    def issue_server(self, days: float = 7, hosts: tuple[str, ...] = HOSTS) -> None:
        """Replace the server's certificate."""
        issued = issue(self.authority, "daemon", days, hosts, for_server=True)
        write_pair(self.folder, "server", issued, self.authority.pem)

    def issue_client(self, days: float = 7) -> None:
        """Replace the client's certificate."""
        issued = issue(self.authority, "alice", days, for_server=False)
        write_pair(self.folder, "client", issued, self.authority.pem)

    @property
    def serve(self) -> tuple[str, ...]:
        """The options of ``serve`` for TLS."""
        cert, key = self.folder / "server.pem", self.folder / "server.key"
        return ("--tls-cert", str(cert), "--tls-key", str(key))

    @property
    def ca(self) -> str:
        """The path of the CA."""
        return str(self.folder / "ca.pem")

    @property
    def client(self) -> dict[str, str]:
        """The options of ``connect`` for mutual TLS."""
        cert, key = self.folder / "client.pem", self.folder / "client.key"
        return {"tls_ca": self.ca, "tls_cert": str(cert), "tls_key": str(key)}
