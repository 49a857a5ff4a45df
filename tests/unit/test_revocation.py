"""Revocation: the end of what a token has begun that is no more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.identity import OWNER
from opdispatch_server.access.token_file import TokenFile
from opdispatch_wire.errors import UnauthenticatedError
from tests.service.tokens import Tokens

CALL = "/opdispatch.v1.ExecutionService/Call"
PORT = "ipv4:127.0.0.1:4711"


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


def test_revocation_ends_only_what_its_token_began(tokens: Tokens):
    good, bad = tokens.add("call"), tokens.add("call")
    authentication = Authentication(TokenFile(tokens.path))
    ended = []

    def end_good() -> None:
        ended.append("good")

    def end_bad() -> None:
        ended.append("bad")

    def end_over() -> None:
        ended.append("over")

    authentication.revocation.begin(authentication.identify(CALL, PORT, f"Bearer {good}"), end_good)
    authentication.revocation.begin(authentication.identify(CALL, PORT, f"Bearer {bad}"), end_bad)
    authentication.revocation.begin(authentication.identify(CALL, PORT, f"Bearer {bad}"), end_over)
    authentication.revocation.begin(OWNER, end_over)
    authentication.revocation.finish(end_over)
    authentication.revocation.look()
    assert ended == []
    tokens.revoke(bad)
    authentication.revocation.look()
    authentication.revocation.look()
    assert ended == ["bad"]
    with pytest.raises(UnauthenticatedError):
        authentication.identify(CALL, PORT, f"Bearer {bad}")


def test_a_token_that_has_expired_or_changed_ends_what_it_has_begun(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
):
    brief, changed = tokens.add("call", lifetime=60.0), tokens.add("admin", name="x")
    authentication = Authentication(TokenFile(tokens.path))
    ended: list[str] = []
    identity = authentication.identify(CALL, PORT, f"Bearer {brief}")
    authentication.revocation.begin(identity, lambda: ended.append("brief"))
    identity = authentication.identify(CALL, PORT, f"Bearer {changed}")
    authentication.revocation.begin(identity, lambda: ended.append("changed"))
    text = tokens.path.read_text().replace('"admin"', '"call"')
    tokens.path.write_text(text)
    authentication.revocation.look()
    assert ended == ["changed"]
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    authentication.revocation.look()
    assert ended == ["changed", "brief"]
