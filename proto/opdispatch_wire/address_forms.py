"""The forms of addresses, without importing the package ``opdispatch``.

This is all that probes need, which start frequently. All other code imports ``addresses``, which
raises OpdispatchErrors.

unix:///run/user/1000/opdispatch/daemon.sock    a unix socket, absolute path
unix:daemon.sock                                a unix socket, any path
dns:///gpu1:50051  tcp://gpu1:50051  gpu1:50051  a host and a port
[::1]:50051                                     an IPv6 address and a port
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

ADDRESS_VARIABLE = "OPDISPATCH_ADDRESS"
# On Linux, sockaddr_un has 108 bytes for the path, including a NUL.
MAX_UNIX_PATH_BYTES = 107

_ACCEPTED = "expected unix:///PATH, dns:///HOST:PORT, tcp://HOST:PORT, HOST:PORT or [IPV6]:PORT"
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]/]+\]|[^\[\]:/@\s]+):(?P<port>[0-9]{1,5})")


class AddressFormError(ValueError):
    """An address does not have one of the accepted forms, or must not be used."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnsafeAddressFormError(AddressFormError):
    """Another user can answer, or does answer, at an address; its form may be valid."""


class UnixAddress(NamedTuple):
    """A unix socket."""

    path: str

    @property
    def target(self) -> str:
        """The address as a gRPC target: a URI, so characters such as ``%`` are escaped."""
        return f"unix:{quote(os.fsencode(self.path))}"

    @property
    def is_loopback(self) -> bool:
        """True: only processes of this machine can reach it."""
        return True

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path.startswith("/") else f"unix:{self.path}"


class TcpAddress(NamedTuple):
    """A TCP port. ``host`` is a name or an address, an IPv6 one without brackets.

    Port 0 is for listening: the system chooses one.
    """

    host: str
    port: int

    @property
    def target(self) -> str:
        """The address as gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it, by ``localhost`` or a loopback address."""
        if self.host.lower() == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False  # a name; what it resolves to may change at any time
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            return address.ipv4_mapped.is_loopback
        return address.is_loopback

    def __str__(self) -> str:
        return self.target


def parse_address(address: str) -> UnixAddress | TcpAddress:
    """Parse an address. Raises AddressFormError if it has none of the accepted forms."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "unix":
        return _parse_unix(rest, address)
    if colon and scheme == "dns":
        if not rest.startswith("///"):
            raise AddressFormError(
                f"the address {address!r} names a DNS server of its own; "
                "expected dns:///HOST:PORT, with three slashes"
            )
        return _parse_tcp(rest.removeprefix("///"), address)
    if colon and scheme == "tcp" and rest.startswith("//"):
        return _parse_tcp(rest.removeprefix("//"), address)
    return _parse_tcp(address, address)


def default_address() -> str:
    """Return the address that daemon and client use by default.

    It is OPDISPATCH_ADDRESS if set, else a unix socket in the user's runtime folder, else one in
    the user's own folder among the temporary files. Creates nothing. Raises UnsafeAddressFormError
    if that folder exists but others can write to it.
    """
    if address := os.environ.get(ADDRESS_VARIABLE):
        return address
    folder = _default_folder()
    check_private_folder(folder)
    return f"unix://{folder / 'daemon.sock'}"


def check_socket_folder(folder: Path) -> None:
    """Raise UnsafeAddressFormError for the default folder if others can put a socket there.

    For the daemon, once the folder exists: another user may have created it after
    ``default_address`` checked.
    """
    if folder == _default_folder():
        check_private_folder(folder)


def check_private_folder(folder: Path) -> None:
    """Raise UnsafeAddressFormError if others can put a socket into ``folder``.

    A folder that does not exist is accepted: no daemon can answer from there.
    """
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeAddressFormError(
            f"{folder} should be a folder of your own, but is not a folder"
        )
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UnsafeAddressFormError(
            f"{folder} should be a folder that only you can write to, but belongs to user "
            f"{status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}",
            hint=f"set {ADDRESS_VARIABLE} or XDG_RUNTIME_DIR",
        )


def _default_folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    runtime = Path(given) if given else Path(f"/run/user/{os.getuid()}")
    # Without a login session neither may exist.
    if runtime.is_absolute() and (given or runtime.is_dir()):
        return runtime / "opdispatch"
    return Path(tempfile.gettempdir()) / f"opdispatch-{os.getuid()}"


def _parse_unix(rest: str, address: str) -> UnixAddress:
    path = rest
    if rest.startswith("//"):
        path = rest.removeprefix("//")
        if not path.startswith("/"):
            raise AddressFormError(
                f"the address {address!r} has a relative path after unix://; "
                "expected unix:///PATH, with three slashes, or unix:PATH"
            )
    if not path or path.endswith("/") or "\0" in path:
        raise AddressFormError(f"the address {address!r} names no socket file; {_ACCEPTED}")
    if "," in path:
        raise AddressFormError(
            f"the socket path {path!r} has a comma; gRPC takes that for a list of addresses"
        )
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH_BYTES:
        raise AddressFormError(
            f"the socket path {path!r} has {size} bytes; a unix socket's path has at most "
            f"{MAX_UNIX_PATH_BYTES}"
        )
    return UnixAddress(path)


def _parse_tcp(text: str, address: str) -> TcpAddress:
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        raise AddressFormError(f"the address {address!r} is not understood; {_ACCEPTED}")
    host, port = match["host"], int(match["port"])
    if port > 65535:
        raise AddressFormError(f"the address {address!r} has port {port}; the highest one is 65535")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as exc:
            raise AddressFormError(f"the address {address!r} has no IPv6 address: {exc}") from exc
    return TcpAddress(host, port)
