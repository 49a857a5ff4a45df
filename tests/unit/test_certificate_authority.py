"""A certificate authority of one's own: what it issues is what OpenSSL takes for that."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from opdispatch_server.access.certificate_authority import (
    issue,
    make_authority,
    read_pair,
    write_pair,
)


def handshake(folder: Path, ca: Path, name: str, host: str) -> None:
    """Have a client that trusts ``ca`` greet a server with a certificate, in memory."""
    server_side, client_side = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.create_default_context(cafile=str(ca)),
    )
    server_side.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_a_certificate_holds_for_its_hosts_and_time_alone(tmp_path: Path):
    authority, other = make_authority("one", 1), make_authority("two", 1)
    write_pair(tmp_path, "ca", authority)
    write_pair(tmp_path, "other", other)
    hosts = ("gpu1.example", "192.0.2.7", "::1")
    write_pair(tmp_path, "good", issue(authority, "d", 1, hosts, for_server=True))
    write_pair(tmp_path, "old", issue(authority, "d", -1, hosts, for_server=True))
    write_pair(tmp_path, "client", issue(authority, "c", 1, for_server=False))
    for host in hosts:
        handshake(tmp_path, tmp_path / "ca.pem", "good", host)
    for ca, name, host in (
        ("ca", "good", "gpu2.example"),
        ("other", "good", "gpu1.example"),
        ("ca", "old", "gpu1.example"),
        ("ca", "client", "gpu1.example"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(tmp_path, tmp_path / f"{ca}.pem", name, host)
    read = read_pair(tmp_path, "ca")
    assert (read.pem, read.key_pem) == (authority.pem, authority.key_pem)
