"""Tickets for the ports of interpreters: what each opens, and what ends with a token."""

from __future__ import annotations

import base64
import dataclasses
import time
from pathlib import Path

import pytest

from opdispatch_server.access.authentication import ANYBODY, Authentication
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.access.route_tickets import (
    LIFETIME,
    RouteTicket,
    RouteTickets,
    TicketAuthentication,
    new_key,
    read_ticket,
)
from opdispatch_server.access.token_file import TokenFile
from opdispatch_wire.errors import PermissionDeniedError, UnauthenticatedError
from tests.service.tokens import Tokens, id_of

CALL_STREAM = "/opdispatch.v1.ExecutionService/CallStream"
SESSION, EPOCH = 7, 41
ALICE = Identity("token 0123 (alice)", Role.LOAD, ("image::*",), time.time() + 3600, "0123")


def ticket(key: bytes, **changes: object) -> str:
    whole = RouteTicket(SESSION, EPOCH, time.monotonic() + LIFETIME, ALICE)
    return f"Ticket {dataclasses.replace(whole, **changes).sign(key)}"


@pytest.fixture
def key() -> bytes:
    return new_key()


@pytest.fixture
def port(key: bytes) -> TicketAuthentication:
    return TicketAuthentication(key, SESSION, lambda: EPOCH)


def test_a_ticket_says_all_that_the_daemon_knows_of_its_holder(
    key: bytes, port: TicketAuthentication
):
    assert port.identify(CALL_STREAM, "ipv4:x", ticket(key)) == ALICE
    forever = dataclasses.replace(ALICE, expires=float("inf"))
    assert port.identify(CALL_STREAM, "ipv4:x", ticket(key, identity=forever)) == forever


def test_old_foreign_or_malformed_ticket_is_refused(key: bytes, port: TicketAuthentication):
    for old in ({"expires": time.monotonic() - 1}, {"epoch": EPOCH - 1}, {"epoch": EPOCH + 1}):
        with pytest.raises(UnauthenticatedError, match="the route ticket is old"):
            port.identify(CALL_STREAM, "", ticket(key, **old))
    with pytest.raises(UnauthenticatedError, match="for another session"):
        port.identify(CALL_STREAM, "", ticket(key, session=SESSION + 1))
    for guessed in (ticket(new_key()), "Ticket ", "Ticket x", f"Ticket {'A' * 9000}", "Ticket ä"):
        with pytest.raises(UnauthenticatedError, match="invalid, or for another session") as caught:
            port.identify(CALL_STREAM, "", guessed)
        assert "through the daemon" in caught.value.hint
    for other in ("", f"Bearer {ticket(key)[7:]}", ticket(key)[7:]):
        with pytest.raises(UnauthenticatedError, match="no route ticket came"):
            port.identify(CALL_STREAM, "", other)


def test_every_changed_bit_is_noticed(key: bytes):
    text = ticket(key)[7:]
    data = bytearray(base64.urlsafe_b64decode(text))
    for place in range(len(data)):
        data[place] ^= 1
        with pytest.raises(UnauthenticatedError):
            read_ticket(key, base64.urlsafe_b64encode(data).decode())
        data[place] ^= 1
    assert read_ticket(key, base64.urlsafe_b64encode(data).decode()).identity == ALICE


def test_a_role_opens_what_it_may_call(key: bytes, port: TicketAuthentication):
    with pytest.raises(PermissionDeniedError, match="needs admin"):
        port.identify("/opdispatch.v1.RegistryService/DrainInterpreter", "", ticket(key))
    with pytest.raises(PermissionDeniedError, match="needs owner"):
        port.identify("/a.Service/Method", "", ticket(key))


def test_a_revoked_token_ends_its_streams_and_no_others(key: bytes, port: TicketAuthentication):
    ended: list[str] = []
    bob = dataclasses.replace(ALICE, name="bob", token="4567")
    for who in (ALICE, bob):
        port.revocation.begin(who, lambda who=who: ended.append(who.token))
    port.revoke(["89ab"])
    assert ended == []
    port.revoke(["0123"])
    port.revoke(["0123"])
    assert ended == ["0123"]
    port.close()
    assert ended == ["0123", "4567"]
    with pytest.raises(UnauthenticatedError):
        port.identify(CALL_STREAM, "", ticket(key))


def test_the_daemon_gives_tickets_while_a_token_holds(tmp_path: Path):
    tokens = Tokens(tmp_path)
    text = tokens.add("call", name="alice")
    authentication = Authentication(TokenFile(tokens.path))
    alice = authentication.identify(CALL_STREAM, "ipv4:x", f"Bearer {text}")
    tickets, revoked = RouteTickets(authentication), list[str]()
    tickets.on_revoked = revoked.append
    given = tickets.issue(alice, SESSION, EPOCH)
    assert tickets.issue(alice, SESSION, EPOCH) != ""
    assert text.split("_", 2)[2] not in base64.urlsafe_b64decode(given).decode(errors="replace")
    port = TicketAuthentication(tickets.key_of(SESSION), SESSION, lambda: EPOCH)
    assert port.identify(CALL_STREAM, "", f"Ticket {given}") == alice
    other = TicketAuthentication(tickets.key_of(SESSION + 1), SESSION + 1, lambda: EPOCH)
    with pytest.raises(UnauthenticatedError):
        other.identify(CALL_STREAM, "", f"Ticket {given}")
    for other in (OWNER, ANYBODY):
        assert tickets.issue(other, SESSION, EPOCH) == ""
    tokens.revoke(text)
    authentication.revocation.look()
    assert revoked == [id_of(text)]
    assert tickets.issue(alice, SESSION, EPOCH) == ""
