"""Where a daemon or an interpreter listens: the addresses that people write (``address_forms``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opdispatch.errors import OpdispatchError
from opdispatch_wire import address_forms
from opdispatch_wire.address_forms import (
    ADDRESS_VARIABLE,
    MAX_UNIX_PATH_BYTES,
    AddressFormError,
    TcpAddress,
    UnixAddress,
)

__all__ = [
    "ADDRESS_VARIABLE",
    "MAX_UNIX_PATH_BYTES",
    "AddressError",
    "TcpAddress",
    "UnixAddress",
    "check_private_folder",
    "default_address",
    "grpc_target",
    "is_loopback",
    "parse_address",
]


class AddressError(OpdispatchError, ValueError):
    """An address does not have one of the accepted forms, or must not be used."""

    code = "address"


def parse_address(address: str) -> UnixAddress | TcpAddress:
    """Takes an address apart. Raises AddressError if it has none of the accepted forms."""
    with _errors_of_ours():
        return address_forms.parse_address(address)


def grpc_target(address: str) -> str:
    """The address as a gRPC channel or server takes it. Raises AddressError."""
    return parse_address(address).target


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address. Raises AddressError."""
    return parse_address(address).is_loopback


def default_address() -> str:
    """The address that daemon and client use when none is given.

    It is OPDISPATCH_ADDRESS if that is set, else a unix socket in the user's runtime folder,
    else one in a folder of the user's own among the temporary files. Creates nothing.
    Raises AddressError if that last folder exists but belongs to someone else.
    """
    with _errors_of_ours():
        return address_forms.default_address()


def check_private_folder(folder: Path) -> None:
    """Raises AddressError if others can put a socket into ``folder``.

    A folder that does not exist is fine: nobody can answer from there.
    """
    with _errors_of_ours():
        address_forms.check_private_folder(folder)


@contextmanager
def _errors_of_ours() -> Iterator[None]:
    try:
        yield
    except AddressFormError as error:
        raise AddressError(error.message, hint=error.hint) from None
