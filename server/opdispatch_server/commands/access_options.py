"""The options of ``opdispatch serve`` and ``opdispatch worker`` for access control."""

# No ``from __future__ import annotations``: Typer reads annotations as they are.
from pathlib import Path
from typing import Annotated

import typer

from opdispatch_server.access.users import parse_users


def _check_users(texts: list[str] | None) -> list[str] | None:
    try:
        parse_users(texts or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return texts


Tokens = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TOKENS",
        metavar="FILE",
        dir_okay=False,
        help="Ask those who come over TCP for a token of this file: see `opdispatch token`.",
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CERT",
        metavar="FILE",
        dir_okay=False,
        help="The certificate for TCP ports, with those up to its CA, in PEM: they speak TLS then. "
        "It is read again when it changes.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_KEY",
        metavar="FILE",
        dir_okay=False,
        help="The key of that certificate, in PEM.",
        show_default=False,
    ),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CLIENT_CA",
        metavar="FILE",
        dir_okay=False,
        help="Ask clients at TCP ports for a certificate of this CA, too.",
        show_default=False,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CA",
        metavar="FILE",
        dir_okay=False,
        help="The CA of the daemon's certificate: it is reached over TLS then.",
        show_default=False,
    ),
]
WorkerTlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        envvar="OPDISPATCH_TLS_CERT",
        metavar="FILE",
        dir_okay=False,
        help="The certificate to show to the daemon, if it asks for one.",
        show_default=False,
    ),
]
AllowUser = Annotated[
    list[str] | None,
    typer.Option(
        metavar="USER=ROLE",
        envvar="OPDISPATCH_ALLOW_USER",
        callback=_check_users,
        help="Let another user of this machine use the unix sockets: alice=call, "
        "bob=load:image::*, carol=admin. Repeat it for several.",
        show_default=False,
    ),
]
QuotaCalls = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_CALLS",
        min=1,
        metavar="N",
        help="How many calls of one token's holder, or of one user of --allow-user, may be under "
        "way. Default: any number.",
        show_default=False,
    ),
]
QuotaBytes = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_BYTES",
        min=1,
        metavar="N",
        help="How many bytes these may have together. Default: any number.",
        show_default=False,
    ),
]
QuotaSessions = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_SESSIONS",
        min=1,
        metavar="N",
        help="How many of their sessions may keep values in interpreters. Default: any number.",
        show_default=False,
    ),
]
QuotaUploads = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_UPLOADS",
        min=1,
        metavar="N",
        help="How many uploads of theirs may be under way. Default: any number.",
        show_default=False,
    ),
]
QuotaValues = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_VALUES",
        min=1,
        metavar="N",
        help="How many values interpreters may keep for them, in all sessions together. Default: "
        "any number.",
        show_default=False,
    ),
]
QuotaValueBytes = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_VALUE_BYTES",
        min=1,
        metavar="N",
        help="How many bytes these may have together. Default: any number.",
        show_default=False,
    ),
]
QuotaQueueShare = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_QUEUE_SHARE",
        min=1,
        max=100,
        metavar="PERCENT",
        help="How much of an interpreter's queue (--queue) their calls may fill. Default: all.",
        show_default=False,
    ),
]
QUOTAS = ("calls", "bytes", "sessions", "uploads", "values", "value_bytes", "queue_share")
"""The names of the quotas, as in the daemon's configuration."""
AuditLog = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_AUDIT_LOG",
        metavar="FILE",
        dir_okay=False,
        help="Where to append who has changed what, in JSON. Default: with the rest, on stderr.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TOKEN_FILE",
        metavar="FILE",
        dir_okay=False,
        help="The file with this interpreter's token, of the role worker.",
        show_default=False,
    ),
]
