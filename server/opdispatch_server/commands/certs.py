"""``opdispatch certs``: a certificate authority, and certificates for a daemon and its clients."""

# No ``from __future__ import annotations``: Typer reads annotations as they are.
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from opdispatch_wire.printable import printable_message

CA_DAYS = 3650.0


def certs(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            file_okay=False,
            help="The folder of the certificates.",
            show_default=False,
        ),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A name or an address at which clients reach the daemon. Repeat it for several. "
            "Default: localhost, 127.0.0.1 and ::1.",
            show_default=False,
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Make a certificate for a client of that name. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float, typer.Option(min=0.01, metavar="N", help="How long the certificates are valid.")
    ] = 90.0,
) -> None:
    """Make certificates for TLS, for tests and small installations.

    The first run makes a certificate authority, ca.pem and ca.key; each run, a new certificate for
    the daemon, server.pem and server.key, and those of the clients that are named. A daemon and
    clients that use the files take new ones over by themselves.
    """
    try:
        from opdispatch_server.access.certificate_authority import (
            issue,
            make_authority,
            read_pair,
            write_pair,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        _fail("`opdispatch certs` needs the package 'cryptography'; install opdispatch[certs]")
    clients, hosts = client or [], host or ["localhost", "127.0.0.1", "::1"]
    for name in clients:
        if not name.isidentifier() or name in ("ca", "server"):
            raise typer.BadParameter(
                f"{name!r} cannot be a client's name; expected letters, digits and _, and neither "
                "ca nor server",
                param_hint="--client",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / "ca.pem").exists():
            write_pair(folder, "ca", make_authority("opdispatch CA", CA_DAYS))
        authority = read_pair(folder, "ca")
        server = issue(authority, "opdispatch daemon", days, hosts, for_server=True)
        write_pair(folder, "server", server, authority.pem)
        for name in clients:
            issued = issue(authority, name, days, for_server=False)
            write_pair(folder, name, issued, authority.pem)
    except (OSError, ValueError) as error:
        _fail(f"{folder}: {error}")
    print(
        f"opdispatch serve --tls-cert {folder / 'server.pem'} --tls-key {folder / 'server.key'}\n"
        f"export OPDISPATCH_TLS_CA={folder / 'ca.pem'}"
    )


def _fail(message: str) -> NoReturn:
    print(f"opdispatch: {printable_message(message)}", file=sys.stderr)
    raise typer.Exit(1)
