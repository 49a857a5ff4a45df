"""``opdispatch health``: for probes, so it only imports gRPC."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_service
from opdispatch_client.cli.exit_codes import CommandError, Exit, UsageError

PANEL = "Interpreters"
TIMEOUT_DEFAULT = 5.0
"""Seconds: probes have a limit of their own, and a healthy daemon answers at once."""

_CHECK = "/grpc.health.v1.Health/Check"
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")


def health(
    settings: Settings,
    service: Annotated[
        str,
        typer.Argument(
            metavar="SERVICE",
            help="library/NAME or interpreter/NAME. Default: the daemon as a whole.",
            show_default=False,
            autocompletion=complete_service,
        ),
    ] = "",
) -> None:
    """Show whether the daemon, a library or an interpreter serves calls (grpc.health.v1).

    Prints SERVING, and the exit code is 0; or NOT_SERVING, and it is 1. It is 1, too, if there is
    no such service, or if nothing answers in time: --timeout is 5 seconds by default.
    """
    timeout = TIMEOUT_DEFAULT if settings.timeout is None else settings.seconds
    status = _check(settings, service, timeout)
    if settings.json:
        import json

        print(json.dumps({"service": service, "status": status}))
    else:
        print(status)
    if status != "SERVING":
        sys.stdout.flush()
        raise typer.Exit(Exit.FAILED)


def _check(settings: Settings, service: str, timeout: float | None) -> str:
    # Not the package `opdispatch`, which takes longer to import than everything here.
    import grpc

    # The messages of the health service have a single field, with this number, so that only gRPC
    # itself has to be installed.
    from google.protobuf.wrappers_pb2 import Int32Value, StringValue

    from opdispatch_wire.address_forms import (
        AddressFormError,
        UnsafeAddressFormError,
        default_address,
        parse_address,
    )
    from opdispatch_wire.socket_owner import check_socket_owner

    try:
        address = settings.address or default_address()
        parsed = parse_address(address)
        check_socket_owner(address)
    except AddressFormError as error:
        cls = CommandError if isinstance(error, UnsafeAddressFormError) else UsageError
        raise cls(f"{error} ({error.hint})" if error.hint else str(error)) from None
    options = [("grpc.enable_http_proxy", int(not parsed.is_loopback))]
    with _credentials(settings).channel(address, options) as channel:
        check: Any = channel.unary_unary(
            _CHECK,
            request_serializer=StringValue.SerializeToString,
            response_deserializer=Int32Value.FromString,
        )
        try:
            number = check(StringValue(value=service), timeout=timeout).value
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise CommandError(
                    f"the daemon at {address} has no service {service!r}; expected library/NAME or "
                    "interpreter/NAME of one that is there, or none for the daemon as a whole"
                ) from None
            from opdispatch_wire.status import error_from_rpc

            raise error_from_rpc(error, address=address) from None
    return _STATUSES[number] if 0 <= number < len(_STATUSES) else str(number)


def _credentials(settings: Settings) -> Any:
    from opdispatch_wire.credentials import Credentials

    return Credentials.of(token_file=settings.token_file)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, "health", health, rich_help_panel=PANEL)
