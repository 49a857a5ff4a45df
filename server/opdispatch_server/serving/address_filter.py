"""Block addresses at a listening TCP port, with a socket filter in the system's kernel.

gRPC accepts every connection, and accepting costs time. A classic BPF program (socket(7),
``SO_ATTACH_FILTER``) drops the SYN packets of new connections before that; the peer's system
retries after one second, then two. Existing connections are not affected.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator, Set
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from opdispatch_server.serving.port_connections import Network

MOST_NETWORKS: Final = 32
"""The most networks in one program: its jump offsets have one byte."""

EVERYONE: Final[frozenset[Network]] = frozenset({IPv4Network("0.0.0.0/0"), IPv6Network("::/0")})

# From socket(7); Python has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27

# From linux/filter.h: load instructions, with offsets from the start of the IP header.
_LOAD_BYTE, _LOAD_WORD = 0x30, 0x20
_SHIFT_RIGHT, _AND, _JUMP_IF_EQUAL, _RETURN = 0x74, 0x54, 0x15, 0x06
_IP_HEADER = 0xFFF00000
_SOURCE_V4, _SOURCE_V6 = _IP_HEADER + 12, _IP_HEADER + 8
_DROP, _KEEP = 0, 0xFFFFFFFF


def shut_out(port: int, networks: Set[Network]) -> None:
    """Drop new connections from exactly these networks, at a TCP port of this process; Linux only.

    Raises OSError if there is no descriptor left for finding its sockets.
    """
    code = b"".join(_program(networks))
    program = ctypes.create_string_buffer(code, len(code))
    for each in listening(port):
        with contextlib.suppress(OSError):  # there is no filter to detach
            if networks:
                filter_ = struct.pack("HP", len(code) // 8, ctypes.addressof(program))
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
            else:
                each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def _program(networks: Set[Network]) -> Iterator[bytes]:
    """Yield the instructions that drop packets from these networks."""
    ours = [each for each in networks if each.version == 4]
    v4 = [
        part
        for each in ours
        for part in (
            *_unless_equal(_SOURCE_V4, int(each.network_address), int(each.netmask), 1),
            _instruction(_RETURN, _DROP),
        )
    ]
    v4.append(_instruction(_RETURN, _KEEP))
    yield _instruction(_LOAD_BYTE, _IP_HEADER)
    yield _instruction(_SHIFT_RIGHT, 4)
    yield _instruction(_JUMP_IF_EQUAL, 6, if_equal=len(v4))
    yield from v4
    for each in networks:
        if each.version == 6:
            # The first half of the address contains a /64 and everything wider.
            words = struct.unpack(">II", each.network_address.packed[:8])
            masks = struct.unpack(">II", each.netmask.packed[:8])
            yield from _unless_equal(_SOURCE_V6, words[0], masks[0], 4)
            yield from _unless_equal(_SOURCE_V6 + 4, words[1], masks[1], 1)
            yield _instruction(_RETURN, _DROP)
    yield _instruction(_RETURN, _KEEP)


def _unless_equal(offset: int, value: int, mask: int, skipped: int) -> Iterator[bytes]:
    """Yield instructions that skip the next ``skipped`` ones unless a masked word has a value."""
    yield _instruction(_LOAD_WORD, offset)
    yield _instruction(_AND, mask)
    yield _instruction(_JUMP_IF_EQUAL, value, otherwise=skipped)


def _instruction(code: int, operand: int, *, if_equal: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_equal, otherwise, operand)


def listening(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets, including gRPC's, that listen at a TCP port; Linux only.

    Each is valid only until the next is requested: its owner closes it. Raises OSError if there is
    no descriptor left for finding them.
    """
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):
        found = None
        with contextlib.suppress(OSError):  # not a socket, or closed meanwhile
            found = socket.socket(fileno=int(name))
        if found is None:
            continue
        try:
            with contextlib.suppress(OSError):
                if (
                    found.family in (socket.AF_INET, socket.AF_INET6)
                    and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    and found.getsockname()[1] == port
                ):
                    yield found
        finally:
            found.detach()  # its owner closes it
