"""Describe the identity of a caller, for listings and logs."""

from __future__ import annotations

from typing import Any

import grpc

from opdispatch_server.access.authentication import ANYBODY, CALLER
from opdispatch_server.access.identity import OWNER
from opdispatch_wire.client_identity import CLIENT_KEY, describe_self

LONGEST = 100


def who_asks(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the token's owner; else ``USER@HOST`` from the client's metadata, else its address.

    Only the daemon's own user can connect to its unix socket.
    """
    caller = CALLER.get()
    if caller is not OWNER and caller is not ANYBODY:
        return caller.name
    claim = dict(context.invocation_metadata() or ()).get(CLIENT_KEY, "")
    text = claim if isinstance(claim, str) else claim.decode(errors="replace")
    if text := "".join(c for c in text[:LONGEST] if c.isprintable()):
        return text
    return describe_peer(context.peer() or "")


def identity_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the caller as ``who_asks`` does, and where it is connected from."""
    peer = context.peer() or ""
    kind, _, address = peer.partition(":")
    if kind.startswith("unix"):
        return f"{who_asks(context)} via unix socket"
    who, where = who_asks(context), address.replace("%5B", "[").replace("%5D", "]")
    return where if who == describe_peer(peer) else f"{who} from {where}"


def describe_peer(peer: str) -> str:
    """Describe a peer as gRPC names it, such as ``ipv4:127.0.0.1:4711``, but shorter."""
    kind, _, address = peer.partition(":")
    if kind.startswith("unix"):
        return describe_self()
    host = address.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return host or peer
