"""Which addresses of interpreters' own a daemon calls, and what it shows there."""

from __future__ import annotations

import pytest

from opdispatch_server.access.roles import Role
from opdispatch_server.access.route_tickets import TicketAuthentication, new_key
from opdispatch_server.daemon.interpreters.own_address import check_own_address
from opdispatch_wire.addresses import AddressError
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.v1 import interpreter_pb2 as pb

CA = Credentials(tls_ca="ca.pem", tls_cert="server.pem", tls_key="server.key")
KEY = new_key()
NEAR, FAR, UNIX = "127.0.0.1:7000", "10.0.0.7:7000", "unix:/tmp/calls.sock"


@pytest.mark.parametrize(
    ("hello", "credentials", "is_secured", "words"),
    [
        ({"address": FAR}, CA, False, "beyond this machine, without TLS"),
        ({"address": FAR, "ticket_key": KEY}, CA, True, "beyond this machine, without TLS"),
        ({"address": FAR, "tls": True}, CA, True, "beyond this machine, without TLS"),
        ({"address": NEAR}, CA, True, "asks for no ticket"),
        ({"address": NEAR, "tls": True, "ticket_key": KEY}, NO_CREDENTIALS, True, "no CA to check"),
        ({"address": "nowhere"}, CA, False, "nowhere"),
    ],
)
def test_a_port_that_is_open_to_others_is_refused(
    hello: dict[str, object], credentials: Credentials, is_secured: bool, words: str
):
    with pytest.raises(AddressError, match=words):
        check_own_address(pb.Hello(**hello), credentials, is_secured=is_secured, insecure=False)


def test_an_insecure_daemon_calls_any():
    for address in (NEAR, FAR, UNIX):
        own = check_own_address(
            pb.Hello(address=address), NO_CREDENTIALS, is_secured=True, insecure=True
        )
        assert own == (address, NO_CREDENTIALS, "")


def test_the_daemon_shows_a_ticket_for_calls_and_nothing_else():
    hello = pb.Hello(address=FAR, tls=True, ticket_key=KEY)
    own = check_own_address(hello, CA, is_secured=True, insecure=False)
    assert own.credentials == CA
    port = TicketAuthentication(KEY, 0, lambda: 0)
    method = "/opdispatch.v1.ExecutionService/CallStream"
    assert port.identify(method, "", f"Ticket {own.ticket}").role is Role.WORKER
    assert own.ticket not in repr(CA)
    quiet = check_own_address(pb.Hello(address=UNIX), CA, is_secured=True, insecure=False)
    assert quiet == (UNIX, NO_CREDENTIALS, "")
