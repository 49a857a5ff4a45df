"""Tokens for tests: a file of them, and a daemon that asks for one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from opdispatch_server.access.roles import Role
from opdispatch_server.access.token import TokenTable, new_token
from opdispatch_server.access.token_file import change_tokens

LOOKING_OFTEN = {"opdispatch_server.access.revocation.REVOCATION_CHECK_SECONDS": 0.05}
"""For daemons of which tests change the tokens: they look at the file so often, in seconds."""


class Tokens:
    """A daemon's file of tokens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"
        change_tokens(self.path, lambda table: table)

    def add(
        self,
        role: str,
        namespaces: Iterable[str] = (),
        *,
        name: str = "",
        lifetime: float = 3600.0,
    ) -> str:
        """Make a token and return it."""
        now = time.time()
        if role == "load":
            namespaces = namespaces or ("*",)
        token, record = new_token(
            Role(role), namespaces, name=name, expires=now + lifetime, now=now
        )
        change_tokens(self.path, lambda table: TokenTable([*table.records.values(), record]))
        return token

    def revoke(self, token: str) -> None:
        """Remove a token."""
        number = id_of(token)
        change_tokens(
            self.path,
            lambda table: TokenTable(each for each in table.records.values() if each.id != number),
        )


def id_of(token: str) -> str:
    """Return the id of a token, which is no secret."""
    return token.split("_")[1]
