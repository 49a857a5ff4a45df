"""The choice of lanes, without I/O: to the daemon, and those of direct calls to interpreters.

A session tries the kinds of lanes to its daemon in the order of ``KINDS`` and takes the first that
works, or insists on one of them. Its direct calls take lanes of the same kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_wire.lanes.lane_messages import LaneClosedError

LaneKind = Literal["local", "stream", "grpc"]

KINDS: Final[tuple[LaneKind, ...]] = ("local", "stream", "grpc")
"""The fastest first; each call as its own gRPC request always works."""

UNUSABLE: Final[Mapping[LaneKind, tuple[type[Exception], ...]]] = {
    "local": (OSError, OpdispatchError),
    "stream": (LaneClosedError,),
    "grpc": (),
}
"""By kind, the errors of an opening after which the next kind is tried."""


def kinds_to_try(endpoint: Endpoint) -> tuple[LaneKind, ...]:
    """Return the kinds of lanes to the daemon to try, in order; one, if the session insists."""
    return KINDS if endpoint.lane == "auto" else (endpoint.lane,)


def direct_kind(endpoint: Endpoint, daemon: LaneKind) -> Literal["local", "stream"] | None:
    """Return the kind of the direct lanes, by that of the lane to the daemon.

    None: all calls go through the daemon.
    """
    if not endpoint.direct:
        return None
    if daemon == "local":
        return "local"
    # The interpreters' ports are at the daemon's host, which a unix socket has none of.
    return "stream" if daemon == "stream" and endpoint.has_ports else None
