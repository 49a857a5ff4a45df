"""The address at which an interpreter itself listens, for calls from the daemon."""

from __future__ import annotations

import math
from typing import NamedTuple

from opdispatch_server.access.identity import Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.access.route_tickets import RouteTicket
from opdispatch_wire.addresses import AddressError, TcpAddress, parse_address
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.v1 import interpreter_pb2 as pb

_CALLER = Identity("the daemon, or an interpreter of its", Role.WORKER)


class OwnAddress(NamedTuple):
    """The address, credentials and ticket with which an interpreter is called."""

    address: str
    credentials: Credentials = NO_CREDENTIALS
    ticket: str = ""
    """The ticket that it requires of callers; empty if none."""


def check_own_address(
    hello: pb.Hello, credentials: Credentials, *, is_secured: bool, insecure: bool
) -> OwnAddress:
    """Return the address in an interpreter's hello. Raises AddressError if it is not permitted.

    ``credentials`` are the daemon's, if it has a CA to check certificates against. A daemon that
    ``is_secured`` calls no port that is open to everyone, unless it is ``insecure``.
    """
    address = parse_address(hello.address)
    ticket = RouteTicket(0, 0, math.inf, _CALLER).sign(hello.ticket_key) if hello.ticket_key else ""
    if not isinstance(address, TcpAddress):
        return OwnAddress(hello.address, ticket=ticket)
    if hello.tls and not credentials.tls_ca:
        raise AddressError(
            f"the interpreter speaks TLS at {hello.address}, and the daemon has no CA to check its "
            "certificate against",
            hint="start the daemon with --tls-client-ca, or the interpreter without --tls-cert",
        )
    if not insecure and not address.is_loopback and not (hello.tls and ticket):
        raise AddressError(
            f"the interpreter listens on {hello.address}, beyond this machine, without TLS",
            hint="start the interpreter with --tls-cert, --tls-key and --tls-ca, and the daemon "
            "with --tls-client-ca, or the daemon with --insecure to allow that",
        )
    if not insecure and is_secured and not ticket:
        raise AddressError(
            f"the interpreter listens on {hello.address}, where it asks for no ticket",
            hint="install the same version of opdispatch on both sides",
        )
    return OwnAddress(hello.address, credentials if hello.tls else NO_CREDENTIALS, ticket)
