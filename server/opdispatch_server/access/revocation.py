"""End the streams and calls of clients whose tokens are revoked, changed or expired."""

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
"""Interval in seconds between checks of the token file, and of open streams against it."""


class Revocation:
    """Streams and calls in progress, by identity. For use in the event loop only."""

    def __init__(self) -> None:
        self._under_way: dict[Callable[[], object], Identity] = {}

    def begin(self, identity: Identity, end: Callable[[], object]) -> None:
        """Register ``end``, called when the token of ``identity`` is revoked."""
        if identity.token:
            self._under_way[end] = identity

    def finish(self, end: Callable[[], object]) -> None:
        """Unregister ``end``: its stream or call has ended."""
        self._under_way.pop(end, None)

    def end_where(self, is_meant: Callable[[Identity], bool]) -> None:
        """Call the registered functions of the identities for which ``is_meant`` is true."""
        for end, identity in list(self._under_way.items()):
            if is_meant(identity):
                del self._under_way[end]
                end()


class TokenRevocation(Revocation):
    """Ends streams and calls of tokens that have expired or are no longer in the token file."""

    def __init__(self, tokens: TokenFile | None) -> None:
        super().__init__()
        self._tokens = tokens

    def look(self) -> None:
        """Reread the token file if it has changed, and end what is no longer permitted."""
        if self._tokens is None:
            return
        self._tokens.refresh()
        table, now = self._tokens.table, time.time()
        self.end_where(lambda identity: not table.holds(identity, now))

    async def watch(self) -> None:
        """Call ``look`` at regular intervals, until cancelled."""
        while self._tokens is not None:
            await asyncio.sleep(REVOCATION_CHECK_SECONDS)
            self.look()


def revoked_error(identity: Identity) -> UnauthenticatedError:
    """Return the error that ends the streams and calls of a revoked identity."""
    return UnauthenticatedError(
        f"{identity.name} is revoked, changed or expired", hint=HOW_TO_GET_ONE
    )
