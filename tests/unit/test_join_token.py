"""Join tokens: whom they are shown to, and that no other hears them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opdispatch_wire import join_token
from opdispatch_wire.credentials import AUTHORIZATION, Credentials
from opdispatch_wire.errors import DaemonUnavailableError, UnauthenticatedError
from opdispatch_wire.join_token import find_pinned_ca, make_join_token, split_join_token
from opdispatch_wire.secured_channel import SecuredChannel
from tests.service.certificates import Certificates
from tests.waits import accept, join

TOKEN = "opd1_0123456789abcdef_" + "x" * 43


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_token, "_FOUND", {})


@contextmanager
def greeting(certificates: Certificates | None) -> Iterator[tuple[int, list[bytes]]]:
    """A server that shows its certificates to one client, or speaks no TLS; and what it hears."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection = accept(listener)
            with connection:
                if certificates is None:
                    connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")
                    return
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                folder = certificates.folder
                context.load_cert_chain(folder / "server.pem", folder / "server.key")
                with context.wrap_socket(connection, server_side=True) as greeted:
                    heard.append(greeted.recv(1000))

        thread = threading.Thread(target=greet)
        thread.start()
        yield listener.getsockname()[1], heard
        join(thread)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs")


def join_token_of(certificates: Certificates) -> str:
    return make_join_token(TOKEN, Path(certificates.ca).read_text())


def test_join_token_has_the_hash_of_one_ca(certificates: Certificates):
    text = join_token_of(certificates)
    pin, token = split_join_token(text)
    assert (len(pin), token) == (64, TOKEN)
    for other in ("", TOKEN, f"opdj1.{pin}", f"opdj1.{pin[1:]}.{TOKEN}", f"opdj2.{pin}.{TOKEN}"):
        assert split_join_token(other) == ("", other)
    for wrong in ("", "no certificate", 2 * Path(certificates.ca).read_text()):
        with pytest.raises(ValueError, match="expected one, in PEM"):
            make_join_token(TOKEN, wrong)


def test_the_ca_is_found_among_the_certificates_that_are_shown(certificates: Certificates):
    pin, _ = split_join_token(join_token_of(certificates))
    with greeting(certificates) as (port, heard):
        assert find_pinned_ca(pin, "127.0.0.1", port).strip() == certificates.authority.pem.strip()
    assert heard == [b""]
    assert find_pinned_ca(pin, "127.0.0.1", 1)  # it is known now


def test_another_ca_is_refused_before_anything_is_sent(certificates: Certificates, tmp_path: Path):
    pin, _ = split_join_token(join_token_of(certificates))
    other = Certificates(tmp_path / "other")
    with greeting(other) as (port, heard), pytest.raises(UnauthenticatedError) as caught:
        find_pinned_ca(pin, "127.0.0.1", port)
    assert heard == [b""]
    assert "not present the CA certificate that the join token names" in caught.value.message
    assert TOKEN not in str(caught.value)


def test_a_certificate_without_its_ca_is_refused(certificates: Certificates):
    pin, _ = split_join_token(join_token_of(certificates))
    folder = certificates.folder
    whole = (folder / "server.pem").read_text()
    (folder / "server.pem").write_text(whole[: whole.index("-----END") + 26] + "\n")
    with greeting(certificates) as (port, _), pytest.raises(UnauthenticatedError):
        find_pinned_ca(pin, "127.0.0.1", port)


def test_join_token_refuses_a_server_without_tls(certificates: Certificates):
    text = join_token_of(certificates)
    with greeting(None) as (port, _), pytest.raises(DaemonUnavailableError) as caught:
        Credentials.of(text).channel(f"127.0.0.1:{port}", [])
    assert "no daemon with TLS answers" in caught.value.message


def test_a_channel_shows_the_token_alone(certificates: Certificates, tmp_path: Path):
    text = join_token_of(certificates)
    (tmp_path / "token").write_text(text + "\n")
    shown = ((AUTHORIZATION, f"Bearer {TOKEN}"),)
    for credentials in (Credentials.of(text), Credentials.of(token_file=tmp_path / "token")):
        assert TOKEN not in repr(credentials)
        assert credentials.without_token().pin == credentials.pin != ""
        with (
            greeting(certificates) as (port, _),
            credentials.channel(f"127.0.0.1:{port}", []) as channel,
        ):
            assert isinstance(channel, SecuredChannel)
            assert channel.metadata() == shown
        join_token._FOUND.clear()
