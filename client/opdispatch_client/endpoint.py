"""The address, timeouts and limits of a session, checked once, on connecting.

Note [Sessions in forked children]
    A forked child inherits its parent's sockets and call ids, but not its threads. If both wrote to
    a socket, their data would be interleaved, and each would read replies to the other's calls. So
    a child must not use a session, nor close it, which would end the parent's connections.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Literal, get_args

import grpc

from opdispatch_client.grpc_forks import GRPC_FORKS, SPAWN_HINT
from opdispatch_client.listings import ServerInfo
from opdispatch_client.request_arguments import (
    LONGEST_TIMEOUT,
    check_flag,
    check_int,
    check_path,
    check_seconds,
)
from opdispatch_wire.addresses import (
    TcpAddress,
    default_address,
    parse_address,
)
from opdispatch_wire.channel import channel_options
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.values import check_text

TIMEOUT_DEFAULT = 30.0
"""Default timeout of one request, in seconds."""

# A live daemon answers the handshake at once; a wrong host may never answer.
HANDSHAKE_TIMEOUT = 10.0

WAIT_DEFAULT = 30.0
"""Seconds that requests wait by default for a daemon that restarts."""

LaneChoice = Literal["auto", "local", "stream", "grpc"]


class ThisProcess:
    """The id of this process, cached because every call checks it; updated after a fork."""

    def __init__(self) -> None:
        self.number = os.getpid()
        os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self.number = os.getpid()


THIS_PROCESS = ThisProcess()
"""The only instance: ``os.register_at_fork`` would keep any other alive forever."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One daemon, as a session sees it."""

    address: str
    timeout: float | None
    max_message_bytes: int
    lane: LaneChoice = "auto"
    """Kind of lane for calls: local, a gRPC stream, a gRPC request for each call, or the fastest
    that works.
    """
    retry: bool = True
    """Whether calls may run again in another interpreter after theirs has died."""
    daemon_user: str | None = None
    """The user whose daemon is expected at a unix socket; None: see ``socket_owner``."""
    credentials: Credentials = NO_CREDENTIALS
    """The credentials of the session."""
    direct: bool = True
    """Whether calls go directly to interpreters where possible."""
    wait: float = 0.0
    """Seconds that requests wait for a daemon that is away. See Note [A daemon that restarts]."""
    connect_wait: float = 0.0
    """Seconds that the handshake waits for a daemon that is away."""
    process: int = field(default_factory=os.getpid)
    """The process that opens the session. See Note [Sessions in forked children]."""

    @property
    def options(self) -> list[tuple[str, int]]:
        """The options of the gRPC channel."""
        return channel_options(self.max_message_bytes, address=self.address)

    @property
    def handshake_timeout(self) -> float:
        """Seconds until the handshake counts as failed."""
        return HANDSHAKE_TIMEOUT if self.timeout is None else min(self.timeout, HANDSHAKE_TIMEOUT)

    @property
    def has_ports(self) -> bool:
        """Whether it is a TCP address, so that interpreters have ports on the same host."""
        return _is_tcp(self.address)  # every call over a stream asks

    def at(self, port: int) -> str:
        """Return the address of another port on the daemon's host. Requires ``has_ports``."""
        address = parse_address(self.address)
        assert isinstance(address, TcpAddress)
        return str(TcpAddress(address.host, port))

    def channel(self) -> grpc.Channel:
        """Return a blocking channel to the daemon."""
        return self.credentials.channel(self.address, self.options)

    def asyncio_channel(self) -> grpc.aio.Channel:
        """Return a channel for the running event loop; otherwise as ``channel``."""
        return self.credentials.asyncio_channel(self.address, self.options)

    def interpreter_channel(self, port: int) -> grpc.Channel:
        """Return a blocking channel to an interpreter's port.

        It does not send the token, since libraries' code could read it there.
        """
        return self.credentials.without_token().channel(self.at(port), self.options)

    def asyncio_interpreter_channel(self, port: int) -> grpc.aio.Channel:
        """Return a channel for the running event loop; otherwise as ``interpreter_channel``."""
        return self.credentials.without_token().asyncio_channel(self.at(port), self.options)

    def message_limit(self, info: ServerInfo) -> int:
        """Return the smaller of both sides' message limits, in bytes."""
        return min(self.max_message_bytes, info.max_message_bytes or MAX_MESSAGE_BYTES_HIGHEST)

    def unanswered_error(self) -> DaemonUnavailableError:
        """Return the error for a handshake that took too long."""
        return DaemonUnavailableError(
            f"no daemon answers at {self.address} within {self.handshake_timeout:g} s",
            hint="start one with `opdispatch serve`",
            address=self.address,
        )

    def check_local_lane(self, path: str) -> None:
        """Raise ConnectionError if calls cannot take the local lane at ``path``."""
        if not path:
            raise ConnectionError("the daemon has none")
        if not lane_socket.is_socket(path):
            raise ConnectionError(
                f"nothing listens at {path}; is the daemon on another machine, or another user's?"
            )

    def no_lane_error(self, why: str) -> DaemonUnavailableError:
        """Return the error for a session whose required kind of lane cannot be opened."""
        kind = "stream of calls" if self.lane == "stream" else "local lane"
        return DaemonUnavailableError(
            f"there is no {kind} to the daemon at {self.address}: {why}",
            hint='omit `lane`, or use "grpc"',
            address=self.address,
        )

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process opened the session; False in a forked child."""
        return self.process == THIS_PROCESS.number

    def check_process(self) -> None:
        """Raise DaemonUnavailableError in a child. See Note [Sessions in forked children]."""
        if not self.is_of_this_process:
            raise self.closed_error()

    def closed_error(self) -> DaemonUnavailableError:
        """Return the error for a request after ``close``, or in a forked child."""
        if not self.is_of_this_process:
            return DaemonUnavailableError(
                f"the session with {self.address} is of process {self.process}, which this one was "
                "forked from",
                hint=SPAWN_HINT
                if GRPC_FORKS.explain_child()
                else "open one in this process, with connect()",
                address=self.address,
            )
        return DaemonUnavailableError(
            f"the session with {self.address} is closed",
            hint="open a new one with connect()",
            address=self.address,
        )


def resolve_endpoint(
    address: str | None,
    *,
    timeout: float | None,
    max_message_bytes: int | None,
    lane: LaneChoice = "auto",
    retry: bool = True,
    direct: bool = True,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    daemon_user: str | None = None,
    wait: float | None = None,
) -> Endpoint:
    """Check the parameters of ``connect`` and fill in defaults.

    Raises AddressError for an invalid address, ValueError for a timeout or a limit that is not
    positive, or an unknown lane, ArgumentError for a value of another type, and
    UnauthenticatedError for a token or a certificate that cannot be read.
    """
    if timeout is not None:
        timeout = check_seconds(timeout, "timeout")
    if max_message_bytes is not None:
        max_message_bytes = check_int(max_message_bytes, "max_message_bytes")
    if wait is not None and not check_seconds(wait, "wait") >= 0:
        raise ValueError(f"wait is {wait!r}; expected a number of seconds, 0 or more, or None")
    retry, direct = check_flag(retry, "retry"), check_flag(direct, "direct")
    if check_text(lane, "lane") not in get_args(LaneChoice):
        raise ValueError(f"lane is {lane!r}; expected one of {', '.join(get_args(LaneChoice))}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; expected a positive number of seconds or None")
    if timeout is not None and timeout > LONGEST_TIMEOUT:
        timeout = None
    address = default_address() if address is None else check_text(address, "address")
    endpoint = Endpoint(
        address=address,
        timeout=timeout,
        max_message_bytes=(
            MAX_MESSAGE_BYTES_HIGHEST if max_message_bytes is None else max_message_bytes
        ),
        lane=lane,
        retry=retry,
        direct=direct,
        wait=WAIT_DEFAULT if wait is None else float(wait),
        connect_wait=0.0 if wait is None else float(wait),
        daemon_user=None if daemon_user is None else check_text(daemon_user, "daemon_user"),
        credentials=Credentials.of(
            None if token is None else check_text(token, "token"),
            **{
                name: None if path is None else check_path(path, name)
                for name, path in (
                    ("token_file", token_file),
                    ("tls_ca", tls_ca),
                    ("tls_cert", tls_cert),
                    ("tls_key", tls_key),
                )
            },
        ),
    )
    _ = endpoint.options  # raises for a limit out of range, before anything is opened
    endpoint.credentials.check(address)
    return endpoint


@functools.lru_cache(64)
def _is_tcp(address: str) -> bool:
    return isinstance(parse_address(address), TcpAddress)
