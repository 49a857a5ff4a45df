"""``opdispatch token``: the tokens of a daemon, created, listed and revoked in its file."""

# No ``from __future__ import annotations``: Typer reads annotations as they are.
import enum
import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from opdispatch_wire.printable import printable_line, printable_message


class TokenAction(enum.StrEnum):
    """The action to take."""

    CREATE = "create"
    LIST = "list"
    REVOKE = "revoke"


def token(
    action: Annotated[TokenAction, typer.Argument(help="What to do.", show_default=False)],
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The token to revoke, as `list` shows it.", show_default=False
        ),
    ] = "",
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="OPDISPATCH_TOKENS",
            metavar="FILE",
            dir_okay=False,
            help="The daemon's file of tokens: `serve --tokens FILE`.",
            show_default=False,
        ),
    ] = None,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="The role of its holder: call, load or admin, each of which includes the ones "
            "before it; or worker, for an interpreter that joins.",
        ),
    ] = "call",
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="For the role load: the operators that libraries may register, such as "
            "'image::*'. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str,
        typer.Option(metavar="TIME", help="When it expires: after 30d, 12h, 15m, or never."),
    ] = "30d",
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The name of its holder, for lists and logs.", show_default=False
        ),
    ] = "",
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Make a join token, which has the hash of this CA, so that its holder needs no "
            "tls_ca.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print JSON.", show_default=False)
    ] = False,
) -> None:
    """Make tokens for a daemon's clients, list them, and revoke them.

    `token create` prints a new token, which nothing shows again: the file has only its SHA-256. A
    daemon that runs takes the change over within a second. `token revoke ID` ends what its holder
    has under way, too, within 5 seconds.
    """
    if tokens is None:
        raise typer.BadParameter(
            "it is missing; say which file, or set OPDISPATCH_TOKENS", param_hint="'--tokens'"
        )
    if bool(token_id) != (action is TokenAction.REVOKE):
        wants = "takes the ID of a token" if not token_id else "takes no ID"
        raise typer.BadParameter(f"{action.value} {wants}", param_hint="'[ID]'")
    try:
        if action is TokenAction.CREATE:
            ca = "" if tls_ca is None else tls_ca.read_text()
            _create(tokens, role, namespace or [], expires, name, json_output, ca)
        elif action is TokenAction.LIST:
            _list(tokens, json_output)
        else:
            _revoke(tokens, token_id)
    except (OSError, ValueError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename or tokens}: {error.strerror}"
        print(f"opdispatch: {printable_message(message)}", file=sys.stderr)
        raise typer.Exit(1) from error


def _create(
    path: Path,
    role: str,
    namespaces: list[str],
    expires: str,
    name: str,
    as_json: bool,
    ca: str = "",
) -> None:
    from opdispatch_server.access.roles import parse_role
    from opdispatch_server.access.token import (
        MAX_TOKENS,
        TokenTable,
        new_token,
        parse_lifetime,
    )
    from opdispatch_server.access.token_file import change_tokens
    from opdispatch_wire.join_token import make_join_token

    now = time.time()
    try:
        secret, record = new_token(
            parse_role(role),
            namespaces,
            name=name,
            expires=now + parse_lifetime(expires),
            now=now,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    if ca:
        secret = make_join_token(secret, ca)

    def add(table: TokenTable) -> TokenTable:
        kept = [each for each in table.records.values() if each.expires > now]
        if len(kept) >= MAX_TOKENS:
            raise ValueError(f"{path} has {MAX_TOKENS} tokens, which is the limit; revoke some")
        return TokenTable([*kept, record])

    change_tokens(path, add)
    if as_json:
        print(json.dumps({"token": secret, **_facts(record.to_json())}))
    else:
        print(secret)
        until = record.to_json()["expires"] or "it is revoked"
        print(f"{record.label}, role {record.role}, holds until {until}", file=sys.stderr)


def _list(path: Path, as_json: bool) -> None:
    from opdispatch_server.access.token_file import read_tokens

    now = time.time()
    records = sorted(read_tokens(path).records.values(), key=lambda each: each.created)
    if as_json:
        print(json.dumps([_facts(record.to_json()) for record in records]))
        return
    for record in records:
        facts = record.to_json()
        until = "expired" if record.expires <= now else f"until {facts['expires'] or 'revoked'}"
        globs = f" {' '.join(record.namespaces)}" if record.namespaces else ""
        name = f" {record.name}" if record.name else ""
        print(printable_line(f"{record.id} {record.role}{globs} {until}{name}"))


def _revoke(path: Path, token_id: str) -> None:
    from opdispatch_server.access.token import TokenTable
    from opdispatch_server.access.token_file import change_tokens, read_tokens

    read_tokens(path)  # raises for a missing file instead of creating one

    def remove(table: TokenTable) -> TokenTable:
        if token_id not in table.records:
            raise ValueError(f"{path} has no token {token_id[:40]!r}; `token list` shows them")
        return TokenTable(each for each in table.records.values() if each.id != token_id)

    change_tokens(path, remove)
    print(f"revoked {token_id}")


def _facts(record: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if key != "sha256"}
