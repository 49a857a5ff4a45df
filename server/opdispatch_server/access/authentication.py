"""Authentication by transport and metadata: once for each request or stream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

from opdispatch_server.access.identity import OWNER, Identity, how_to_get
from opdispatch_server.access.revocation import TokenRevocation
from opdispatch_server.access.roles import LEAST_ROLE, Role
from opdispatch_server.access.token import HOW_TO_GET_ONE
from opdispatch_server.access.token_file import TokenFile
from opdispatch_wire.errors import UnauthenticatedError

ANYBODY: Final = Identity("anybody", Role.OWNER)
"""The identity of any client at a TCP port of a daemon without tokens."""

CALLER: ContextVar[Identity] = ContextVar("opdispatch_caller", default=OWNER)
"""The identity whose request this task serves; for the daemon's own work, the owner."""

_SCHEME = "bearer "


class Authentication:
    """Identifies callers. For use in the event loop only.

    At a unix socket, the identity is the peer's user: without ``peers``, only the daemon's own user
    and root can connect. At a port it is that of a token, or ANYBODY if the daemon has no
    ``tokens``.
    """

    def __init__(
        self, tokens: TokenFile | None = None, peers: Mapping[str, Identity] | None = None
    ) -> None:
        """Identify by ``tokens`` at TCP ports, by ``peers`` at unix sockets open to other users.

        ``peers`` maps gRPC's names of peers to identities; ``SharedSocket`` updates it.
        """
        self._tokens = tokens
        self._peers = peers
        self.revocation = TokenRevocation(tokens)

    @property
    def has_tokens(self) -> bool:
        """Whether callers over TCP need a token."""
        return self._tokens is not None

    def identify(self, method: str, peer: str, authorization: str) -> Identity:
        """Return the identity of a caller who may call ``method``.

        ``method`` is ``/SERVICE/METHOD``, ``peer`` is gRPC's name of the peer, such as
        ``ipv4:127.0.0.1:4711``, and ``authorization`` is the request's header of that name. Raises
        UnauthenticatedError without a valid token, PermissionDeniedError if the role is too low.
        """
        least = LEAST_ROLE.get(method, Role.OWNER)
        identity = self._identity_of(method, least, peer, authorization)
        identity.check_may_call(method, least)
        return identity

    def _identity_of(self, method: str, least: Role, peer: str, authorization: str) -> Identity:
        if peer.startswith("unix"):
            return OWNER if self._peers is None else self._user_of(self._peers, peer)
        if self._tokens is None:
            return ANYBODY
        name = method.rpartition("/")[2]
        scheme, token = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :]
        if scheme.lower() != _SCHEME:
            raise UnauthenticatedError(
                f"no token came with the request, and {name} needs one with the role {least}",
                hint=HOW_TO_GET_ONE,
                needed=least.value,
            )
        try:
            return self._tokens.table.identify(token.strip())
        except UnauthenticatedError as error:
            raise UnauthenticatedError(
                f"{error.message}; {name} needs one with the role {least}",
                hint=how_to_get(least),
                needed=least.value,
            ) from None

    def _user_of(self, peers: Mapping[str, Identity], peer: str) -> Identity:
        identity = peers.get(peer.removeprefix("unix-abstract:"))
        if identity is None:  # it has disconnected meanwhile
            raise UnauthenticatedError("the caller's process is unknown", hint="connect again")
        return identity

    def holds(self, identity: Identity) -> bool:
        """Return whether an identity has a token that is still valid."""
        return self._tokens is not None and self._tokens.table.holds(identity, time.time())


def uses_local_lanes(identity: Identity) -> bool:
    """Return whether to send an identity the paths of the daemon's and interpreters' local lanes.

    At a lane, peers are identified by their user, and the daemon's user may do everything. Sessions
    that present a token do not get the paths, even if they run as that user, so that the token's
    role, quota and expiry apply.
    """
    return identity is OWNER or identity is ANYBODY
