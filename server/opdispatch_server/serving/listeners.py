"""The addresses that a daemon listens on, each held by one daemon at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from opdispatch_server.lock_file import open_lock_file
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.connection_limits import (
    ACCEPT_QUEUE,
    most_connections,
    shorten_accept_queue,
)
from opdispatch_server.serving.handshake_pace import HandshakePace
from opdispatch_server.serving.server_certificates import ServerCertificates
from opdispatch_server.socket_names import own_name
from opdispatch_wire.addresses import (
    MAX_UNIX_PATH_BYTES,
    AddressError,
    TcpAddress,
    UnixAddress,
    UnsafeAddressError,
    check_socket_folder,
    parse_address,
)

LOG = logging.getLogger("opdispatch.daemon")


class AddressInUseError(OSError):
    """The address is already in use; the message is one sentence."""


class SocketLock:
    """The right to listen on a unix socket, held through a lock on ``SOCKET.lock``.

    The system releases the lock with the process that holds it, however the process ends; so a
    socket whose lock is free belongs to no daemon, and may be replaced.
    """

    def __init__(self, path: Path, *, take_over: bool = False) -> None:
        """Acquire the lock; raise AddressInUseError if a living daemon has it.

        With ``take_over``, take it from that daemon.
        """
        self._path = path.with_name(path.name + ".lock")
        self._file = -1
        if take_over:
            self.renew()
            return
        while True:
            self._file = open_lock_file(self._path)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                raise AddressInUseError(
                    f"a daemon already listens on unix://{path}: stop it, or give this one "
                    "another address with --listen"
                ) from error
            if self._is_current():
                return
            os.close(self._file)  # its last owner removed it between open and lock

    @property
    def is_current(self) -> bool:
        """Whether no other daemon has taken over."""
        return self._file >= 0 and self._is_current()

    def renew(self) -> None:
        """Replace the lock file by one of this process."""
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        file = open_lock_file(draft)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def write(self, text: str) -> None:
        """Write a line into the file, for users who may read the socket's folder."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{text}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock and remove its file. Idempotent."""
        if self._file < 0:
            return
        if self._is_current():
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1

    def _is_current(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(self._path.lstat(), os.fstat(self._file))
        return False


class Listener:
    """One bound address. ``address`` is for clients: with the actual port, or an absolute path."""

    def __init__(
        self,
        address: str,
        *,
        socket_path: Path | None,
        lock: SocketLock | None,
        bound: Path | None = None,
    ) -> None:
        """Own a bound address; ``bound`` is the socket's other name, used by ``put_back``."""
        self.address = address
        self._socket_path = socket_path
        self._lock = lock
        self._bound = bound
        self._lane = ""

    def put_back(self) -> None:
        """Restore the name of a unix socket that another daemon may have replaced."""
        if self._bound is None or self._socket_path is None or self._lock is None:
            return
        if not self._lock.is_current:
            self._lock.renew()
            self.tell_lane(self._lane)
        _publish(self._bound, self._socket_path)

    def tell_lane(self, path: str) -> None:
        """Write the path of the daemon's local lane into the lock file; see ``single_call``."""
        self._lane = path
        if self._lock is not None:
            self._lock.write(path)

    def close(self) -> None:
        """Remove the address's files. Idempotent."""
        if self._socket_path is not None and self._lock is not None:
            if self._lock.is_current:
                self._socket_path.unlink(missing_ok=True)
            self._lock.release()
        if self._bound is not None:
            self._bound.unlink(missing_ok=True)
        self._socket_path = self._lock = None


def bind(
    server: grpc.aio.Server,
    address: str,
    *,
    insecure: bool,
    tls: ServerCertificates | None = None,
    has_tokens: bool = False,
    take_over: bool = False,
) -> Listener:
    """Bind ``server`` to ``address``, which must be free; a TCP address with ``tls``, if given.

    With ``take_over``, another daemon may still listen there, and ends soon. Raises AddressError
    for an address that is malformed, or reachable from other machines without TLS and tokens unless
    it is ``insecure``, and AddressInUseError.
    """
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress):
        return _bind_unix(server, parsed, take_over=take_over)
    if not parsed.is_loopback and not (insecure or (tls is not None and has_tokens)):
        raise AddressError(
            f"{parsed} can be reached from other machines, and any client of the daemon can "
            "run code in it",
            hint="give --tls-cert, --tls-key and --tokens, or listen on 127.0.0.1 or a unix "
            "socket, or add --insecure",
        )
    return _bind_tcp(server, parsed, tls, take_over=take_over)


def warn_of_other_users(address: str) -> None:
    """Log which users can reach a TCP address of a daemon that authenticates no client.

    Loading a library runs its code as the daemon's user.
    """
    parsed = parse_address(address)
    if isinstance(parsed, TcpAddress):
        where = "of this machine" if parsed.is_loopback else "of every machine that reaches it"
        LOG.warning(
            "%s is open to any user %s, who can load and call libraries, and so run code as user "
            "%d; at a unix socket, only that user and root can",
            parsed,
            where,
            os.geteuid(),
            extra=fields(Event.ADDRESS_OPEN),
        )


def listen_for_users(
    address: UnixAddress, *, take_over: bool = False
) -> tuple[Listener, socket.socket]:
    """Return a listening unix socket that all users can connect to. Raises as ``bind`` does."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def listen(path: Path) -> None:
        try:
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(ACCEPT_QUEUE)
        except OSError as error:
            raise RuntimeError(error.strerror) from error

    try:
        return _claim(address, listen, folder_mode=0o755, take_over=take_over), listener
    except BaseException:
        listener.close()
        raise


def _bind_unix(server: grpc.aio.Server, parsed: UnixAddress, *, take_over: bool) -> Listener:
    return _claim(
        parsed, lambda path: server.add_insecure_port(f"unix:{path}"), take_over=take_over
    )


def _claim(
    parsed: UnixAddress,
    listen: Callable[[Path], object],
    folder_mode: int = 0o700,
    *,
    take_over: bool = False,
) -> Listener:
    """Let ``listen`` create a socket at a path that is free, or whose daemon has ended.

    With ``take_over``, the socket replaces that of a daemon that ends soon. It also has a name of
    its own, since gRPC, when it stops, removes the name that it was given, whatever has that name
    by then. If the path leaves no room for such a name, the socket listens at the path itself.
    """
    path = Path(parsed.path).absolute()
    address = str(parse_address(f"unix:{path}"))
    try:
        # Only a folder created here is made private: for others the user decides.
        path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        check_socket_folder(path.parent)
        lock = SocketLock(path, take_over=take_over)
    except AddressInUseError:
        raise
    except OSError as error:
        # A link in place of the lock is not a fault of the address.
        cls = UnsafeAddressError if error.errno == errno.ELOOP else AddressError
        raise cls(f"cannot listen on {address}: {error.strerror}") from error
    try:
        own = own_name(path)
        bound = own if len(os.fsencode(own)) <= MAX_UNIX_PATH_BYTES else None
        if not take_over:
            _remove_stale_socket(path)
        # The socket file is created with its final mode: at no moment could others connect.
        before = os.umask(0o177)
        try:
            listen(bound or path)
        finally:
            os.umask(before)
        if bound is not None:
            _publish(bound, path)
    except RuntimeError as error:
        lock.release()
        raise AddressError(f"cannot listen on {address}: {error}") from error
    except BaseException:
        lock.release()
        raise
    return Listener(address, socket_path=path, lock=lock, bound=bound)


def _publish(bound: Path, path: Path) -> None:
    """Link a socket to the name ``path``, atomically replacing any other."""
    draft = bound.with_name(f"{bound.name}.")
    draft.unlink(missing_ok=True)
    os.link(bound, draft)
    draft.rename(path)
    # left over if both names were links to one file, which rename ignores
    draft.unlink(missing_ok=True)


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a daemon that has ended; the caller holds the lock."""
    for other in path.parent.glob(f".{path.name}.*"):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(other)) == errno.ECONNREFUSED:
                other.unlink(missing_ok=True)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"{path} exists and is not a socket", hint="choose another address")
    with socket.socket(socket.AF_UNIX) as probe:
        refused = probe.connect_ex(str(path)) == errno.ECONNREFUSED
    if not refused:
        raise AddressInUseError(f"another program listens on unix://{path}")
    path.unlink(missing_ok=True)


def _bind_tcp(
    server: grpc.aio.Server, parsed: TcpAddress, tls: ServerCertificates | None, *, take_over: bool
) -> Listener:
    in_use = AddressInUseError(
        f"a daemon or another program already listens on {parsed}: stop it, or give "
        "this daemon another address with --listen"
    )
    # A daemon shares its port, so that another one can take over; gRPC would share it with any
    # process.
    if parsed.port and not take_over and _is_taken(parsed):
        raise in_use
    pace = HandshakePace(most_connections())
    try:
        if tls is None:
            port = server.add_insecure_port(parsed.target)
        else:
            port = server.add_secure_port(parsed.target, tls.credentials(pace.count))
    except RuntimeError as error:
        if parsed.port and _is_taken(parsed):
            raise in_use from error
        raise AddressError(f"cannot listen on {parsed}: {error}") from error
    pace.port = port
    shorten_accept_queue(port)
    return Listener(str(TcpAddress(parsed.host, port)), socket_path=None, lock=None)


def _is_taken(parsed: TcpAddress) -> bool:
    # gRPC gives the reason only in prose, so binding is tried again to get an errno.
    try:
        info = socket.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(info[0], info[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(info[4])
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
