"""Credentials of clients: a token, which is read again, and is sent to the daemon alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opdispatch_wire.addresses import UnsafeAddressError
from opdispatch_wire.credentials import AUTHORIZATION, Credentials, SecuredChannel
from opdispatch_wire.errors import UnauthenticatedError

PORT = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPDISPATCH_TOKEN", raising=False)
    monkeypatch.delenv("OPDISPATCH_TOKEN_FILE", raising=False)


def shown_by(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    with credentials.channel(PORT, []) as channel:
        assert isinstance(channel, SecuredChannel)
        return channel._metadata()


def test_what_is_given_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
        assert channel._metadata() == ((AUTHORIZATION, "Bearer first"),)
        path.write_text("the-second")
        assert channel._metadata() == ((AUTHORIZATION, "Bearer the-second"),)
        for content in ("", "two words", "x" * 5000):
            path.write_text(content)
            assert channel._metadata() == ((AUTHORIZATION, "Bearer the-second"),)
        path.unlink()
        assert channel._metadata() == ((AUTHORIZATION, "Bearer the-second"),)


@pytest.mark.parametrize("token", ["two words", "a\nb", "é", "x" * 5000])
def test_what_is_no_token_is_refused_without_its_text(token: str, tmp_path: Path):
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
def test_nothing_is_shown_in_clear_beyond_this_machine(address: str):
    with pytest.raises(UnsafeAddressError, match="sent in clear"):
        Credentials.of("secret").check(address)
    Credentials.of().check(address)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_every_kind_of_method_has_it_beside_its_own_metadata(kind: str):
    sent: list[Any] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: self

        def __call__(self, *args: Any, **options: Any) -> None:
            sent.append((args, options))

        def future(self, *args: Any, **options: Any) -> None:
            sent.append((args, options))

    channel = SecuredChannel(Recorder(), lambda: (("authorization", "Bearer t"),))
    method = getattr(SecuredChannel(Recorder(), channel._metadata), kind)("/a/b")
    method._method = Recorder()
    method("request", timeout=1, metadata=(("a", "b"),))
    method.future("request")
    both = (("a", "b"), ("authorization", "Bearer t"))
    assert sent[0] == (("request",), {"timeout": 1, "metadata": both})
    assert sent[1] == (("request",), {"metadata": both[1:]})
