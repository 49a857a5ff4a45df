"""The certificates of a server: checked before they are taken, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdispatch_server.serving.server_certificates import ServerCertificates, TlsError
from tests.service.certificates import Certificates


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path):
    certificates = Certificates(tmp_path / "certs")
    folder = certificates.folder
    (tmp_path / "text").write_text("no certificate")
    server = folder / "server.pem", folder / "server.key"
    for files in (
        (tmp_path / "none", server[1]),
        (tmp_path / "text", server[1]),
        (server[0], folder / "client.key"),
        (*server, tmp_path / "text"),
    ):
        with pytest.raises(TlsError, match="cannot be used"):
            ServerCertificates(*files)
    assert not ServerCertificates(*server).asks_clients
    assert ServerCertificates(*server, folder / "ca.pem").asks_clients


def test_each_port_hears_once_of_a_change(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    certificates = Certificates(tmp_path / "certs")
    folder = certificates.folder
    server = ServerCertificates(folder / "server.pem", folder / "server.key")
    first, second = server._teller(lambda: None), server._teller(lambda: None)
    assert (first(), second()) == (None, None)
    certificates.issue_server()
    told = first()
    assert told is not None
    assert (first(), second(), second()) == (None, told, None)
    (folder / "server.key").write_bytes((folder / "client.key").read_bytes())
    assert [first() for _ in range(3)] == [None] * 3
    (folder / "server.key").unlink()
    assert first() is None
    refused = [each for each in caplog.records if each.event == "certificate_refused"]
    assert len(refused) == 2
    certificates.issue_server()
    assert first() is not None
