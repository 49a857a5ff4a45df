"""Credentials of clients: a token, which is read again, and is sent to the daemon alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opdispatch_wire import credentials as credentials_module
from opdispatch_wire import secured_channel
from opdispatch_wire.addresses import UnsafeAddressError
from opdispatch_wire.credentials import AUTHORIZATION, Credentials
from opdispatch_wire.errors import UnauthenticatedError
from opdispatch_wire.secured_channel import SecuredChannel
from tests.service.certificates import Certificates

PORT = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPDISPATCH_TOKEN", raising=False)
    monkeypatch.delenv("OPDISPATCH_TOKEN_FILE", raising=False)


def shown_by(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    with credentials.channel(PORT, []) as channel:
        assert isinstance(channel, SecuredChannel)
        return channel.metadata()


def test_given_token_precedes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text("of-a-file\n")
    monkeypatch.setenv("OPDISPATCH_TOKEN_FILE", str(tmp_path / "token"))
    assert shown_by(Credentials.of()) == ((AUTHORIZATION, "Bearer of-a-file"),)
    monkeypatch.setenv("OPDISPATCH_TOKEN", "of-the-environment")
    assert shown_by(Credentials.of()) == ((AUTHORIZATION, "Bearer of-the-environment"),)
    given = Credentials.of(token_file=tmp_path / "token")
    assert shown_by(given) == ((AUTHORIZATION, "Bearer of-a-file"),)
    assert shown_by(Credentials.of("given", given.token_file)) == ((AUTHORIZATION, "Bearer given"),)


def test_a_file_is_read_again_when_it_changes_and_believed_when_it_is_whole(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("first")
    with Credentials.of(token_file=path).channel(PORT, []) as channel:
        assert isinstance(channel, SecuredChannel)
        assert channel.metadata() == ((AUTHORIZATION, "Bearer first"),)
        path.write_text("the-second")
        assert channel.metadata() == ((AUTHORIZATION, "Bearer the-second"),)
        for content in ("", "two words", "x" * 5000):
            path.write_text(content)
            assert channel.metadata() == ((AUTHORIZATION, "Bearer the-second"),)
        path.unlink()
        assert channel.metadata() == ((AUTHORIZATION, "Bearer the-second"),)


@pytest.mark.parametrize("token", ["two words", "a\nb", "é", "x" * 5000])
def test_malformed_token_error_does_not_show_it(token: str, tmp_path: Path):
    (tmp_path / "token").write_text(token)
    for credentials in (Credentials.of(token), Credentials.of(token_file=tmp_path / "token")):
        with pytest.raises(UnauthenticatedError) as caught:
            credentials.channel(PORT, [])
        assert token not in str(caught.value)
        assert token not in repr(credentials)


def test_a_unix_socket_is_shown_nothing(tmp_path: Path):
    with Credentials.of("secret").channel(f"unix://{tmp_path}/socket", []) as channel:
        assert not isinstance(channel, SecuredChannel)


@pytest.mark.parametrize("address", ["192.0.2.1:1", "dns:///gpu1:1", "[2001:db8::1]:1"])
def test_token_is_not_sent_in_clear_to_another_machine(address: str):
    with pytest.raises(UnsafeAddressError, match="sent in clear"):
        Credentials.of("secret").check(address)
    Credentials.of().check(address)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_every_kind_of_method_has_it_beside_its_own_metadata(kind: str):
    sent: list[Any] = []

    class Recorder:
        def __call__(self, *args: Any, **options: Any) -> None:
            sent.append((args, options))

        def future(self, *args: Any, **options: Any) -> None:
            sent.append((args, options))

    class Channel:
        def __getattr__(self, name: str) -> Any:
            assert name == kind
            return lambda path: Recorder()

    channel = SecuredChannel(Channel, lambda: (("authorization", "Bearer t"),))
    method = getattr(channel, kind)("/a/b")
    method("request", timeout=1, metadata=(("a", "b"),))
    method.future("request")
    both = (("a", "b"), ("authorization", "Bearer t"))
    assert sent[0] == (("request",), {"timeout": 1, "metadata": both})
    assert sent[1] == (("request",), {"metadata": both[1:]})


class Calls:
    """A channel whose requests are under way until they are ended."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.is_closed = False

    def unary_stream(self, path: str) -> Any:
        def call(request: object, metadata: object) -> Call:
            self.made.append(Call())
            return self.made[-1]

        return call

    def close(self) -> None:
        self.is_closed = True


class Call:
    def add_done_callback(self, done: Any) -> None:
        self.end = lambda: done(self)


def test_a_channel_is_renewed_and_the_old_one_closed_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(secured_channel, "FILE_CHECK_SECONDS", 0.0)
    made: list[Calls] = []
    changes = iter([False, True, False, False])

    def make() -> Calls:
        made.append(Calls())
        return made[-1]

    channel = SecuredChannel(make, lambda: (), lambda: next(changes))
    method = channel.unary_stream("/a/b")
    method("first")
    method("second, after a change")
    assert [len(each.made) for each in made] == [1, 1]
    method("third")
    assert not made[0].is_closed
    made[0].made[0].end()
    method("fourth")
    assert [len(each.made) for each in made] == [1, 3]
    assert [each.is_closed for each in made] == [True, False]
    channel.close()
    assert made[1].is_closed


def test_certificates_are_checked_before_anything_is_sent(tmp_path: Path):
    certificates = Certificates(tmp_path / "certs")
    ca, client = certificates.ca, certificates.client
    (tmp_path / "text").write_text("no certificate")
    for wrong, message in (
        ({"tls_ca": str(tmp_path / "none")}, "No such file"),
        ({"tls_ca": str(tmp_path / "text")}, "cannot be used"),
        ({**client, "tls_key": str(tmp_path / "certs" / "server.key")}, "MISMATCH|mismatch"),
        ({"tls_cert": client["tls_cert"], "tls_ca": ca}, "one is missing"),
        ({"tls_cert": client["tls_cert"], "tls_key": client["tls_key"]}, "no CA for the daemon's"),
    ):
        with pytest.raises(UnauthenticatedError, match=message):
            Credentials.of(**wrong).check(PORT)
        Credentials.of(**wrong).check(f"unix://{tmp_path}/socket")
    Credentials.of("secret", **client).check("192.0.2.1:1")


def test_certificates_are_read_again_and_believed_when_they_fit(tmp_path: Path):
    certificates = Certificates(tmp_path / "certs")
    folder = certificates.folder
    with Credentials.of(**certificates.client).channel(PORT, []) as channel:
        assert isinstance(channel, SecuredChannel)
        assert not channel._has_changed()
        certificates.issue_client()
        assert channel._has_changed()
        assert not channel._has_changed()
        whole = (folder / "client.pem").read_bytes()
        (folder / "client.pem").write_bytes(whole[:50])
        assert not channel._has_changed()
        (folder / "client.pem").write_bytes((folder / "server.pem").read_bytes())
        assert not channel._has_changed()


def test_certificates_that_are_just_being_replaced_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    certificates = Certificates(tmp_path / "certs")
    key = tmp_path / "certs" / "client.key"
    old = key.read_bytes()
    certificates.issue_client()
    new, _ = key.read_bytes(), key.write_bytes(old)
    monkeypatch.setattr(credentials_module.time, "sleep", lambda seconds: key.write_bytes(new))
    Credentials.of("secret", **certificates.client).check(PORT)
