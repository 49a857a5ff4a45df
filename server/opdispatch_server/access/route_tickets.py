"""Tickets, issued by the daemon, that identify clients at the ports of interpreters.

Note [Route tickets]
    An interpreter does not know the tokens, and clients must not send it theirs, because it runs
    code of libraries. So the daemon puts a ticket into each route, which states the identity, the
    session of the interpreter, the epoch of the registry and the expiry. Its HMAC uses a key that
    only the daemon and this one session have.

    A ticket opens a stream, which ends when the token behind the ticket is revoked: the daemon
    notifies the interpreters in the message that begins a new epoch, so that older tickets become
    invalid, too. An interpreter whose daemon has vanished would not be notified, and ends all these
    streams.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.revocation import Revocation
from opdispatch_server.access.roles import LEAST_ROLE, Role
from opdispatch_wire.errors import UnauthenticatedError

LOG = logging.getLogger("opdispatch.access")

LIFETIME: Final = 30.0
"""Seconds for which a ticket can open streams."""

_SCHEME = "ticket "
_KEY_BYTES = 32
_LONGEST = 4096
_HINT = "call through the daemon, which gives sessions their tickets"


@dataclass(frozen=True, slots=True)
class RouteTicket:
    """The content of a ticket.

    ``expires`` is a time of ``time.monotonic``, which all processes of a machine share; inf: never.
    """

    session: int
    epoch: int
    expires: float
    identity: Identity

    def sign(self, key: bytes) -> str:
        """Return its text, which the holder of the key can verify."""
        who = self.identity
        content = json.dumps(
            [
                self.session,
                self.epoch,
                self.expires,
                who.name,
                who.role,
                who.namespaces,
                None if math.isinf(who.expires) else who.expires,
                who.token,
            ]
        ).encode()
        return base64.urlsafe_b64encode(_mac(key, content) + content).decode()


def read_ticket(key: bytes, text: str) -> RouteTicket:
    """Return the ticket in a text, verifying the HMAC before parsing.

    Raises UnauthenticatedError if the HMAC is invalid.
    """
    try:
        data = base64.b64decode(text[: _LONGEST + 1], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    mac, content = data[:_KEY_BYTES], data[_KEY_BYTES:]
    if len(text) > _LONGEST or not hmac.compare_digest(mac, _mac(key, content)):
        raise UnauthenticatedError(
            "the route ticket is invalid, or for another session or interpreter", hint=_HINT
        )
    session, epoch, expires, name, role, namespaces, until, token = json.loads(content)
    until = math.inf if until is None else until
    identity = Identity(name, Role(role), tuple(namespaces), until, token)
    return RouteTicket(session, epoch, expires, identity)


def new_key() -> bytes:
    """Return a random HMAC key."""
    return secrets.token_bytes(_KEY_BYTES)


class RouteTickets:
    """The daemon's side: issues tickets to identities with tokens. For the event loop only.

    ``on_revoked`` is called with the id of a token that has had tickets and is no longer valid.
    """

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self._secret = new_key()
        self._holders: dict[Identity, Callable[[], object]] = {}
        self.on_revoked: Callable[[str], object] = lambda token: None

    def key_of(self, session: int) -> bytes:
        """Return the key for one session of an interpreter."""
        return _mac(self._secret, str(session).encode())

    def issue(self, identity: Identity, session: int, epoch: int) -> str:
        """Return a ticket.

        "" for an identity without a token, or with one that is no longer valid.
        """
        if not self._authentication.holds(identity):
            return ""
        if identity not in self._holders:
            end = self._holders[identity] = partial(self._revoked, identity)
            self._authentication.revocation.begin(identity, end)
        expires = time.monotonic() + LIFETIME
        return RouteTicket(session, epoch, expires, identity).sign(self.key_of(session))

    def _revoked(self, identity: Identity) -> None:
        self._holders.pop(identity, None)
        self.on_revoked(identity.token)


class TicketAuthentication:
    """The interpreter's side: identifies clients by tickets. For the event loop only.

    ``epoch`` returns the epoch whose routes are valid, 0 if none are.
    """

    def __init__(self, key: bytes, session: int, epoch: Callable[[], int]) -> None:
        self._key = key
        self._session = session
        self._epoch = epoch
        self._is_closed = False
        self.revocation = Revocation()

    def identify(self, method: str, peer: str, authorization: str) -> Identity:
        """Return the identity of a caller who may call ``method``; see ``Authentication.identify``.

        Raises UnauthenticatedError without a valid ticket, and PermissionDeniedError.
        """
        scheme, text = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :]
        if scheme.lower() != _SCHEME:
            raise UnauthenticatedError(
                "no route ticket came with the request, and this port requires one", hint=_HINT
            )
        ticket = read_ticket(self._key, text.strip())
        if ticket.session != self._session:
            raise UnauthenticatedError("the route ticket is for another session", hint=_HINT)
        if self._is_closed or ticket.epoch != self._epoch() or ticket.expires <= time.monotonic():
            raise UnauthenticatedError(
                "the route ticket is old: it has expired, or the registry has changed since",
                hint=_HINT,
            )
        ticket.identity.check_may_call(method, LEAST_ROLE.get(method, Role.OWNER))
        return ticket.identity

    def revoke(self, tokens: Iterable[str]) -> None:
        """End what is in progress for the holders of the tokens with these ids."""
        gone = frozenset(tokens)
        self.revocation.end_where(lambda identity: identity.token in gone)

    def close(self) -> None:
        """End everything, and refuse all tickets: without a daemon, no revocation would arrive."""
        self._is_closed = True
        self.revocation.end_where(lambda identity: True)


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)
