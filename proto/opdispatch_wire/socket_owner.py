"""Check which user's process listens at a unix socket before sending anything to it.

Does not import the package ``opdispatch``, as ``address_forms`` does not.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from pathlib import Path

from opdispatch_wire.address_forms import UnixAddress, UnsafeAddressFormError, parse_address

DAEMON_USER_VARIABLE = "OPDISPATCH_DAEMON_USER"

_CREDENTIALS = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id at the other end of a unix socket.

    The kernel provides them (SO_PEERCRED, ``man 7 unix``), so that a peer cannot forge them.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(raw)
    return process, user


def is_trusted(user: int) -> bool:
    """Return whether a user id is trusted at the other end: our own, or root."""
    return user in (os.geteuid(), 0)


def _is_daemon_user(user: int, name: str | None) -> bool:
    """Return whether a user id is that of ``name``, a user name or a decimal id.

    ``None`` stands for the environment variable.
    """
    name = os.environ.get(DAEMON_USER_VARIABLE) if name is None else name
    if not name:
        return False
    if name.isdecimal():
        return user == int(name)
    try:
        return user == pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UnsafeAddressFormError(
            f"there is no user {name!r} on this machine",
            hint=f"correct connect(daemon_user=...) or {DAEMON_USER_VARIABLE}",
        ) from None


def check_socket_owner(address: str, daemon_user: str | None = None) -> None:
    """Raise UnsafeAddressFormError if another user's process listens at a unix socket.

    ``daemon_user`` is the name or id of one more trusted user, by default OPDISPATCH_DAEMON_USER.

    gRPC does not check this, and in a folder that others can write to, any user could have made
    the socket. TCP addresses, and sockets without a listener, pass. Does not block.
    """
    parsed = parse_address(address)
    if not isinstance(parsed, UnixAddress):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        try:
            probe.connect(parsed.path)
            process, user = peer_of(probe)
        except BlockingIOError:  # the listener's backlog is full
            process, user = 0, Path(parsed.path).stat().st_uid
        except OSError:
            return  # gRPC will report why it cannot connect
    if not is_trusted(user) and not _is_daemon_user(user, daemon_user):
        whose = f"process {process} of user {user}" if process else f"user {user}"
        raise UnsafeAddressFormError(
            f"{whose} listens at {parsed}; expected a daemon of user {os.geteuid()}, or of root",
            hint="give the address of a daemon of your own, or name the user whose daemon you "
            f"mean: connect(daemon_user=...) or {DAEMON_USER_VARIABLE}",
        )
