"""The addresses at which a daemon or an interpreter listens, as people write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opdispatch.errors import OpdispatchError
from opdispatch_wire import address_forms, socket_owner
from opdispatch_wire.address_forms import (
    ADDRESS_VARIABLE,
    MAX_UNIX_PATH_BYTES,
    AddressFormError,
    TcpAddress,
    UnixAddress,
    UnsafeAddressFormError,
)

__all__ = [
    "ADDRESS_VARIABLE",
    "MAX_UNIX_PATH_BYTES",
    "AddressError",
    "TcpAddress",
    "UnixAddress",
    "UnsafeAddressError",
    "check_private_folder",
    "check_socket_folder",
    "check_socket_owner",
    "default_address",
    "grpc_target",
    "is_loopback",
    "parse_address",
]


class AddressError(OpdispatchError, ValueError):
    """An address does not have one of the accepted forms, or must not be used."""

    code = "address"


class UnsafeAddressError(AddressError):
    """Another user can answer, or does answer, at an address.

    The address itself may be valid, and the user's own default.
    """

    code = "unsafe_address"


def parse_address(address: str) -> UnixAddress | TcpAddress:
    """Parse an address. Raises AddressError if it has none of the accepted forms."""
    with _errors_of_ours():
        return address_forms.parse_address(address)


def grpc_target(address: str) -> str:
    """Return the address as the target of a gRPC channel or server. Raises AddressError."""
    return parse_address(address).target


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach the address. Raises AddressError."""
    return parse_address(address).is_loopback


def default_address() -> str:
    """Return the address that daemon and client use by default.

    It is OPDISPATCH_ADDRESS if set, else a unix socket in the user's runtime folder, else one in
    the user's own folder among the temporary files. Creates nothing. Raises UnsafeAddressError if
    that folder exists but others can write to it.
    """
    with _errors_of_ours():
        return address_forms.default_address()


def check_private_folder(folder: Path) -> None:
    """Raise UnsafeAddressError if others can put a socket into ``folder``.

    A folder that does not exist is accepted: no daemon can answer from there.
    """
    with _errors_of_ours():
        address_forms.check_private_folder(folder)


def check_socket_folder(folder: Path) -> None:
    """Check the default folder with ``check_private_folder``.

    Other folders are their owner's responsibility.
    """
    with _errors_of_ours():
        address_forms.check_socket_folder(folder)


def check_socket_owner(address: str, daemon_user: str | None = None) -> None:
    """Raise UnsafeAddressError if another user's process listens there: see ``socket_owner``."""
    with _errors_of_ours():
        socket_owner.check_socket_owner(address, daemon_user)


@contextmanager
def _errors_of_ours() -> Iterator[None]:
    try:
        yield
    except UnsafeAddressFormError as error:
        raise UnsafeAddressError(error.message, hint=error.hint) from None
    except AddressFormError as error:
        raise AddressError(error.message, hint=error.hint) from None
