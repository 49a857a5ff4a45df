"""Authentication: who asks, and what a token opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdispatch_server.access.authentication import ANYBODY, Authentication
from opdispatch_server.access.identity import OWNER
from opdispatch_server.access.roles import Role
from opdispatch_server.access.token import TokenTable
from opdispatch_server.access.token_file import TokenFile, change_tokens
from opdispatch_wire.errors import PermissionDeniedError, UnauthenticatedError
from tests.service.tokens import Tokens

CALL = "/opdispatch.v1.ExecutionService/Call"
LOAD = "/opdispatch.v1.RegistryService/LoadLibrary"
PORT = "ipv4:127.0.0.1:4711"


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


def test_at_a_unix_socket_it_is_the_owner_whatever_is_shown(tokens: Tokens):
    authentication = Authentication(TokenFile(tokens.path))
    for peer in ("unix:", "unix:/run/x", "unix-abstract:x"):
        assert authentication.identify(LOAD, peer, "Bearer wrong") is OWNER


def test_at_a_port_without_tokens_it_is_anybody():
    authentication = Authentication()
    assert authentication.identify(LOAD, PORT, "Bearer wrong") is ANYBODY
    assert not authentication.has_tokens


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_at_a_port_it_is_the_holder_of_a_token(tokens: Tokens, scheme: str):
    token = tokens.add("call", name="alice")
    authentication = Authentication(TokenFile(tokens.path))
    assert authentication.identify(CALL, PORT, f"{scheme} {token}").role is Role.CALL
    with pytest.raises(PermissionDeniedError, match="LoadLibrary needs load"):
        authentication.identify(LOAD, PORT, f"{scheme} {token}")


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic eDp5", "opd1_x"])
def test_invalid_token_error_names_the_needed_role(tokens: Tokens, authorization: str):
    authentication = Authentication(TokenFile(tokens.path))
    with pytest.raises(UnauthenticatedError, match="LoadLibrary needs one with the role load"):
        authentication.identify(LOAD, PORT, authorization)
    with pytest.raises(UnauthenticatedError, match="New needs one with the role owner"):
        authentication.identify("/opdispatch.v1.Service/New", PORT, authorization)


def test_file_without_tokens_admits_no_client(tokens: Tokens):
    token = tokens.add("admin")
    authentication = Authentication(TokenFile(tokens.path))
    change_tokens(tokens.path, lambda table: TokenTable())
    authentication.revocation.look()
    with pytest.raises(UnauthenticatedError):
        authentication.identify(CALL, PORT, f"Bearer {token}")
