"""Who asks: for listings and logs, never to decide whether somebody may."""

from __future__ import annotations

import getpass
import socket
from typing import Any

import grpc

CLIENT_KEY = "opdispatch-client"
LONGEST = 100


def who_asks(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """``USER@HOST`` as the client says; else where it is connected from.

    A unix socket of ours has only one user who can connect: the daemon's own.
    """
    claim = dict(context.invocation_metadata() or ()).get(CLIENT_KEY, "")
    text = claim if isinstance(claim, str) else claim.decode(errors="replace")
    if text := "".join(c for c in text[:LONGEST] if c.isprintable()):
        return text
    return describe_peer(context.peer() or "")


def describe_peer(peer: str) -> str:
    """A peer as gRPC names it, such as ``ipv4:127.0.0.1:4711``, without what means nothing."""
    kind, _, address = peer.partition(":")
    if kind == "unix":
        return f"{own_user()}@{socket.gethostname()}"
    return address.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]") or peer


def own_user() -> str:
    """The user that this process runs as; the number, if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
