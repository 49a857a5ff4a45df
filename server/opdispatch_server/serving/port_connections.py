"""The connections of a TCP port of this machine, as its kernel lists them: sock_diag(7).

gRPC reports the address of a connection only after its handshake, and not if it ends before.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple, TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_HEADER: Final = struct.Struct("=IHHII")
_ADDRESS = 24
"""The offset of the peer's address in a message, after the header: 4 bytes or 16."""

# From linux/tcp_states.h: all states but those of listening and closed sockets (TIME_WAIT, CLOSE),
# of which a flood leaves tens of thousands.
_STATES = sum(1 << state for state in (1, 2, 3, 4, 5, 8, 9, 11, 12))


class Connection(NamedTuple):
    """The other end of a connection."""

    address: IPv4Address | IPv6Address
    port: int

    @property
    def network(self) -> Network:
        """Return the smallest network of one customer: an IPv4 address, or a /64."""
        if self.address.version == 4:
            return IPv4Network(self.address)
        return IPv6Network((self.address, 64), strict=False)


def port_connections(port: int) -> Iterator[Connection]:
    """Yield the connections of a TCP port, including those not yet accepted.

    Raises OSError if the system has no such interface.
    """
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError("sock_diag is Linux's")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
        for family in (socket.AF_INET, socket.AF_INET6):
            asked.send(_request(port, family))
            yield from _answers(asked)


def _request(port: int, family: int) -> bytes:
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _STATES)
    body += struct.pack(">H", port).ljust(40, b"\0") + b"\xff" * 8  # with any cookie
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0) + body


def _answers(asked: socket.socket) -> Iterator[Connection]:
    while data := asked.recv(1 << 17):
        at = 0
        while at < len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                raise OSError(-code, "sock_diag")
            yield _connection(data[at + _HEADER.size : at + length])
            at += length + 3 & ~3


def _connection(answer: bytes) -> Connection:
    (port,) = struct.unpack_from(">H", answer, 6)
    if answer[0] == socket.AF_INET:
        return Connection(IPv4Address(answer[_ADDRESS : _ADDRESS + 4]), port)
    address = IPv6Address(answer[_ADDRESS : _ADDRESS + 16])
    return Connection(address.ipv4_mapped or address, port)
