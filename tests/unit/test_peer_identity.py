"""The identity of a request's client, in words."""

from __future__ import annotations

import pytest

from opdispatch_server.daemon.servicers.peer_identity import LONGEST, describe_peer, who_asks
from opdispatch_wire.client_identity import CLIENT_KEY, describe_self


class Context:
    """Stand-in for a gRPC context with the values that gRPC would have brought."""

    def __init__(self, peer: str, **metadata: str | bytes) -> None:
        self._peer = peer
        self._metadata = tuple(metadata.items())

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


@pytest.mark.parametrize(
    ("peer", "who"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B::1%5D:4711", "[::1]"),
        ("unix:", describe_self()),
        ("unix:/run/a.sock", describe_self()),
        ("nonsense", "nonsense"),
        ("", ""),
    ],
)
def test_a_peer_is_described_without_its_port(peer: str, who: str):
    assert describe_peer(peer) == who


def test_client_may_send_its_own_description():
    assert who_asks(Context("unix:", **{CLIENT_KEY: "ann@lab"})) == "ann@lab"  # type: ignore[arg-type]
    hostile = Context("unix:", **{CLIENT_KEY: b"ev\x1b[2Jil\n" + b"x" * 1000})
    told = who_asks(hostile)  # type: ignore[arg-type]
    assert told.startswith("ev[2Jilxxx")
    assert told.isprintable()
    assert len(told) <= LONGEST


@pytest.mark.parametrize("user", ["a\x1b[2Jb", "a\nb", "ann\u202e", "\x7f", "\t", "é"])
def test_a_user_named_by_control_characters_fits_into_metadata(
    user: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LOGNAME", user)
    told = describe_self.__wrapped__()
    assert told.isascii()
    assert told.isprintable()
    assert "?" in told


def test_describe_self_fits_into_metadata():
    assert describe_self().isascii()
    assert "@" in describe_self()
