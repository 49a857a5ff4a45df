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
        help="Require a token of this file from clients over TCP: see `opdispatch token`.",
        show_default=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CERT",
        metavar="FILE",
        dir_okay=False,
        help="Serve TLS on TCP ports with this certificate chain, in PEM. It is read again when it "
        "changes.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_KEY",
        metavar="FILE",
        dir_okay=False,
        help="The private key of that certificate, in PEM.",
        show_default=False,
    ),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CLIENT_CA",
        metavar="FILE",
        dir_okay=False,
        help="Also require a client certificate of this CA on TCP ports.",
        show_default=False,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TLS_CA",
        metavar="FILE",
        dir_okay=False,
        help="Connect to the daemon over TLS, and verify its certificate with this CA.",
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
        help="The client certificate for a daemon that requires one.",
        show_default=False,
    ),
]
AllowUser = Annotated[
    list[str] | None,
    typer.Option(
        metavar="USER=ROLE",
        envvar="OPDISPATCH_ALLOW_USER",
        callback=_check_users,
        help="Let another user of this machine use the unix sockets, with a role: alice=call, "
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
        help="How many calls one identity may have under way: the holder of a token, or a user of "
        "--allow-user. Default: any number.",
        show_default=False,
    ),
]
QuotaBytes = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_BYTES",
        min=1,
        metavar="N",
        help="How many bytes these calls may have together. Default: any number.",
        show_default=False,
    ),
]
QuotaSessions = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_SESSIONS",
        min=1,
        metavar="N",
        help="How many sessions of one identity may keep remote values. Default: any number.",
        show_default=False,
    ),
]
QuotaUploads = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_UPLOADS",
        min=1,
        metavar="N",
        help="How many uploads one identity may have under way. Default: any number.",
        show_default=False,
    ),
]
QuotaValues = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUOTA_VALUES",
        min=1,
        metavar="N",
        help="How many remote values one identity may keep, in all its sessions together. Default: "
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
        help="How many bytes these values may have together. Default: any number.",
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
        help="How much of an interpreter's queue (--queue) the calls of one identity may fill. "
        "Default: all.",
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
        help="Append a record of each change and who made it to this file, in JSON. Default: log "
        "it on stderr.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_TOKEN_FILE",
        metavar="FILE",
        dir_okay=False,
        help="A file with this interpreter's token, which must have the role worker.",
        show_default=False,
    ),
]
