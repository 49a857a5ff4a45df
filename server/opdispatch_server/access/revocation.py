"""Revocation: what holders of tokens have begun is ended when their tokens are in force no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from opdispatch_server.access.identity import Identity
from opdispatch_server.access.token import HOW_TO_GET_ONE
from opdispatch_server.access.token_file import TokenFile
from opdispatch_wire.errors import UnauthenticatedError

REVOCATION_CHECK_SECONDS: Final = 1.0
"""How often the file of tokens is looked at, and open streams against it, in seconds."""


class Revocation:
    """Ends what is under way for the holders of tokens. Belongs to the event loop."""

    def __init__(self) -> None:
        self._under_way: dict[Callable[[], object], Identity] = {}

    def begin(self, identity: Identity, end: Callable[[], object]) -> None:
        """Note what is under way for an identity: ``end`` is called when its token is revoked."""
        if identity.token:
            self._under_way[end] = identity

    def finish(self, end: Callable[[], object]) -> None:
        """Note that it is over."""
        self._under_way.pop(end, None)

    def end_where(self, is_meant: Callable[[Identity], bool]) -> None:
        """End what is under way for the identities that are meant."""
        for end, identity in list(self._under_way.items()):
            if is_meant(identity):
                del self._under_way[end]
                end()


class TokenRevocation(Revocation):
    """Ends what is under way for tokens that their file has no more, or that have expired."""

    def __init__(self, tokens: TokenFile | None) -> None:
        super().__init__()
        self._tokens = tokens

    def look(self) -> None:
        """Take over a file of tokens that has changed, and end what no token allows any more."""
        if self._tokens is None:
            return
        self._tokens.refresh()
        table, now = self._tokens.table, time.time()
        self.end_where(lambda identity: not table.holds(identity, now))

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while self._tokens is not None:
            await asyncio.sleep(REVOCATION_CHECK_SECONDS)
            self.look()


def revoked_error(identity: Identity) -> UnauthenticatedError:
    """Return the error that ends what was under way for an identity."""
    return UnauthenticatedError(
        f"{identity.name} is revoked, changed or expired", hint=HOW_TO_GET_ONE
    )
